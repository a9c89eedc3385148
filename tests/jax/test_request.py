"""What JAX would hand to a compiler, for the platform that was asked for."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch import watch_hbm
from hbmwatch._jax.request import (
    CompileRequest,
    WrongPlatform,
    compile_request,
    lower_for,
    without_locations,
)


class Model:
    """Weights with a jitted and a plain method."""

    def __init__(self) -> None:
        self.weights = jnp.ones((8, 8))

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x: Any) -> Any:
        """A jitted method, self static."""
        return x @ self.weights

    def plain(self, x: Any) -> Any:
        """A method that nobody has jitted."""
        return x @ self.weights


def scaled(x: Any, factor: Any) -> Any:
    """A step with a second argument."""
    return x * factor


X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
STEPS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "plain": (jnp.sin, (X,)),
    "jitted": (jax.jit(jnp.sin), (X,)),
    "watched": (watch_hbm(jnp.sin), (X,)),
    "jitted method": (Model().jitted, (X,)),
    "plain method": (Model().plain, (X,)),
    "partial of a jitted": (functools.partial(jax.jit(scaled), factor=2.0), (X,)),
    "wrapped": (jax.profiler.annotate_function(jax.jit(jnp.sin)), (X,)),
    "static": (jax.jit(scaled, static_argnums=1), (X, 3)),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_form_of_a_step_is_lowered_for_the_platform(name: str) -> None:
    """The lowered module says nothing of the CPU that the arguments lie on."""
    step, args = STEPS[name]
    lowered = lower_for(step, args, {}, "tpu")
    request = compile_request(lowered)

    assert request.name.startswith("jit_")
    assert len(request.devices) == 1
    assert request.module.startswith(b"ML\xefR")


def test_a_lowering_rule_sees_the_platform() -> None:
    """What depends on the platform is lowered for the one that was asked for, not the CPU."""

    def step(x: Any) -> Any:
        return jax.lax.platform_dependent(x, tpu=lambda x: x + 111, default=lambda x: x + 222)

    text = lower_for(step, (X,), {}, "tpu").as_text()

    assert "1.110000e+02" in text
    assert "2.220000e+02" not in text


def test_a_donation_stays() -> None:
    """The arguments that the step's own jit donates are donated."""
    step = functools.partial(jax.jit(scaled, donate_argnums=0), factor=2.0)
    lowered = lower_for(step, (X,), {}, "tpu")

    (donated, _) = (info.donated for info in jax.tree.leaves(lowered.args_info))
    assert donated


def test_what_ignores_the_platform_is_refused() -> None:
    """A `.lower` of the user's own that lowers for the CPU is not measured as a TPU's."""

    class Own:
        def lower(self, x: Any) -> Any:
            return jax.jit(jnp.sin).lower(X) if x is None else self.kept

        kept = jax.jit(jnp.sin).lower(X)

    with pytest.raises(WrongPlatform, match="not lowered for 'tpu'"):
        lower_for(Own(), (X,), {}, "tpu")  # type: ignore[arg-type]


def test_a_compile_by_another_thread_goes_on() -> None:
    """While a request is made here, another thread compiles and gets its program."""
    lowered, results = jax.jit(jnp.cos).lower(X), []

    def compile_elsewhere() -> None:
        for n in range(5):
            results.append(float(jax.jit(lambda x, n=n: x + n)(1.0)))

    thread = threading.Thread(target=compile_elsewhere)
    thread.start()
    names = {compile_request(lowered).name for _ in range(20)}
    thread.join()

    assert (names, results) == ({"jit_cos"}, [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_step_that_was_compiled_is_requested_again() -> None:
    """JAX's memory of what it has compiled does not stand between."""
    step = jax.jit(jnp.tanh)
    step(jnp.ones((4, 8)))
    step.lower(X).compile()

    assert compile_request(step.lower(X)).name == "jit_tanh"


def test_equal_steps_are_equal_requests() -> None:
    """But for the lines of code, module and options are the same bytes: they can key a cache."""

    def request() -> CompileRequest:
        jax.clear_caches()
        return compile_request(jax.jit(scaled).lower(X, X))

    first = request()
    second = request()

    assert first.module != second.module
    assert without_locations(first.module) == without_locations(second.module)
    assert first.options == second.options


def test_the_devices_are_in_the_order_of_the_mesh() -> None:
    """A program on a mesh names its devices in the mesh's order."""
    devices = jax.devices("cpu")[:4]
    mesh = Mesh(np.array(devices[::-1]), ("data",))
    rows = NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=rows)

    assert compile_request(lower_for(jnp.sin, (x,), {}, "tpu")).devices == tuple(devices[::-1])


def test_equinox_is_lowered_for_shapes_as_for_arrays() -> None:
    """A jitted function, with donation, and a jitted method."""
    import equinox as eqx

    class Dense(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def jitted(self, x: Any) -> Any:
            return x @ self.weight

        def plain(self, x: Any) -> Any:
            return x @ self.weight

    @eqx.filter_jit(donate="all")
    def step(dense: Any, x: Any) -> Any:
        return eqx.apply_updates(dense, Dense(-dense.weight)), dense.plain(x)

    dense, x = Dense(jnp.arange(64.0).reshape(8, 8)), jnp.ones((4, 8))
    shapes = eqx.filter_eval_shape(lambda: (dense, x))
    texts = [lower_for(step, args, {}, "tpu").as_text() for args in ((dense, x), shapes)]
    assert texts[0] == texts[1]
    assert "tf.aliasing_output" in texts[0] or "jax.buffer_donor" in texts[0]

    for method in (dense.jitted, dense.plain):
        texts = [lower_for(method, (one,), {}, "tpu").as_text() for one in (x, shapes[1])]
        assert texts[0] == texts[1]
        assert "dot_general" in texts[0]
