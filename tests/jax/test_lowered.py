"""What is known of a call before it is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch._jax.lowered import CallInfo, Leaf, call_info


def step(state: Any, batch: Any, unused: Any, *, scale: Any) -> Any:
    """A step with a nested state, an argument that nothing reads, and a keyword."""
    return {"w": state["w"] * scale, "loss": batch.sum()}


def test_a_call_is_told_leaf_by_leaf() -> None:
    """Paths as HLO has them, shapes, dtypes, donation, what is used, and the mesh."""
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("data", "model"))

    def array(*shape: int, spec: Any = None, dtype: Any = jnp.float32) -> Any:
        spec = spec or P()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    lowered = jax.jit(step, donate_argnums=0).lower(
        {"w": array(8, 6, spec=P("data", "model"))},
        array(4, 4, spec=P(("data", "model"))),
        array(2),
        scale=array(dtype=jnp.bfloat16),
    )
    call = call_info(lowered)
    expected = (
        Leaf("state['w']", (8, 6), "float32", donated=True),
        Leaf("batch", (4, 4), "float32"),
        Leaf("unused", (2,), "float32", used=False),
        Leaf("scale", (), "bfloat16"),
    )
    assert call.arguments == expected
    assert [(leaf.path, leaf.shape, leaf.dtype) for leaf in call.outputs] == [
        ("result['loss']", (), "float32"),
        ("result['w']", (8, 6), "float32"),
    ]
    assert (call.mesh, call.device_count) == ({"data": 2, "model": 2}, 4)


def test_earlier_compiles_are_kept() -> None:
    """The argument leaves of earlier compiles are kept unchanged."""
    lowered = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((4,), jnp.float32))
    earlier = (Leaf("x", (2,), "float32"),)
    assert call_info(lowered, [earlier]).previous == (earlier,)


def test_what_is_no_lowered_program_tells_nothing() -> None:
    """Nothing is known of an object of another library, and nothing raises."""
    assert call_info(object()) == CallInfo()
