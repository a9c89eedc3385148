"""Steps of a few layers, with all that a change can apply to; they run on the CPU in no time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch._preflight.changes import BY_NAME
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.change import Asked, Edit

WIDTH, BATCH = 128, 256
# Closed over by `train_step`: 1 MiB.
TABLE = np.random.default_rng(0).normal(size=(WIDTH, 2048)).astype(np.float32) / WIDTH


def layer(x: Any, weights: Any) -> Any:
    """A dense layer; there are several, so that each can have a checkpoint."""
    return jnp.sin(jnp.tanh(x @ weights))


def loss_of(params: Any, x: Any) -> Any:
    """Dense layers with a wide last one."""
    for weights in params["layers"]:
        x = layer(x, weights)
    scores = x @ TABLE
    return jnp.mean(jax.nn.logsumexp(scores, -1) - scores[:, 0])


def train_step(state: Any, x: Any, rate: Any = 0.1) -> Any:
    """Momentum; returns the new state, the loss, and the gradients themselves."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
    jax.debug.callback(lambda value: None, loss)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], grads)
    params = jax.tree.map(lambda p, v: p - rate * v, state["params"], velocity)
    return {"params": params, "velocity": velocity}, loss, grads


def arguments(layers: int = 3) -> tuple[Any, Any]:
    """A state and a batch, as arrays."""
    keys = jax.random.split(jax.random.key(0), layers + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[1:]]
    params = {"layers": weights}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "velocity": zeros}, jax.random.normal(keys[0], (BATCH, WIDTH))


def mesh() -> Mesh:
    """Four CPU devices."""
    return Mesh(np.array(jax.devices("cpu")[:4]), ("data",))


def on_a_mesh(args: Any) -> Any:
    """The state on every device, the batch spread over them."""
    state, x = args
    whole, spread = NamedSharding(mesh(), P()), NamedSharding(mesh(), P("data"))
    return jax.device_put(state, whole), jax.device_put(x, spread)


def shapes(tree: Any) -> Any:
    """The arrays by shape and sharding."""
    return jax.tree.map(
        lambda x: (
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            if getattr(x, "committed", False)
            else jax.ShapeDtypeStruct(x.shape, x.dtype)
        ),
        tree,
    )


def differences(found: Any, expected: Any) -> dict[str, float]:
    """The leaves that differ by more than float32 rounding, each with the part of its maximum."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(expected)
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(expected))
    differing = {}
    for (path, right), left in zip(leaves, jax.tree.leaves(found), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        largest = float(np.max(np.abs(right))) or 1.0
        part = float(np.max(np.abs(np.asarray(left) - np.asarray(right)))) / largest
        if part > 1e-5:
            differing[jax.tree_util.keystr(path)] = part
    return differing


def first_edit(name: str, call: Call, *paths: str) -> Edit:
    """What a change proposes first for a call, or for those of its arguments."""
    return next(BY_NAME[name].edits(call, None, Asked(paths)))
