"""What the programs are made of: how a case is entered, arrays, meshes, and common layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from tests.programs import devices


@dataclass(frozen=True)
class Case:
    """A thread as a program: what is wrong in it, and where it was told.

    Attributes:
        name: The builder's name.
        kind: The slug of the finding that the fix of the thread stands for.
        source: The thread, or threads.
        build: The builder.
        platform: "tpu" or "gpu".
        limit_mib: What the compiler may use, where that is less than a v5e has.
    """

    name: str
    kind: str
    source: str
    build: Callable[[bool], Any]
    platform: str
    limit_mib: int | None


CASES: list[Case] = []
Build = Callable[[bool], Any]


def case(
    kind: str, source: str, platform: str = "tpu", limit_mib: int | None = None
) -> Callable[[Build], Build]:
    """Enter a builder in CASES under its own name."""

    def enter(build: Build) -> Build:
        CASES.append(Case(build.__name__, kind, source, build, platform, limit_mib))
        return build

    return enter


def array(*shape: int, dtype: Any = jnp.float32, platform: str = "tpu") -> jax.ShapeDtypeStruct:
    """An argument on the first device."""
    sharding = SingleDeviceSharding(devices(platform)[0])
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def on_one(fun: Callable[..., Any], *args: Any, platform: str = "tpu", **jit: Any) -> Any:
    """Lower a function for one device."""
    one = SingleDeviceSharding(devices(platform)[0])
    return jax.jit(fun, out_shardings=one, **jit).lower(*args)


def mesh(*axes: str) -> Mesh:
    """The four chips as a mesh of one or two axes."""
    shape = (4,) if len(axes) == 1 else (2, 2)
    return Mesh(np.array(devices("tpu")).reshape(shape), axes)


def sharded(where: NamedSharding, *shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument that is laid over a mesh."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def size(*shape: int, itemsize: int = 4) -> int:
    """Bytes of an array."""
    return math.prod(shape) * itemsize


def adam(params: Any, mu: Any, nu: Any, grads: Any) -> tuple[Any, Any, Any]:
    """One step of Adam on trees of float32."""
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return params, mu, nu


def mlp(params: list[Any], x: Any) -> Any:
    """A stack of dense layers."""
    for w in params:
        x = jnp.tanh(x @ w)
    return x


def attention(params: Any, x: Any, heads: int, queries: Any = None) -> Any:
    """Plain softmax attention over [batch, time, features], of all tokens or of some queries."""
    batch, _, width = x.shape
    queries = x if queries is None else queries
    shape = (batch, -1, heads, width // heads)
    q = (queries @ params["q"]).reshape(shape)
    k, v = ((x @ params[name]).reshape(shape) for name in ("k", "v"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return out.reshape(batch, -1, width) @ params["o"]


def ffn(params: Any, x: Any) -> Any:
    """The dense half of a block."""
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def decoder_params(width: int, layers: int = 0, **kwargs: Any) -> Any:
    """Shapes of one block, or of a stack of blocks for a scan."""
    lead = (layers,) if layers else ()
    square = array(*lead, width, width, **kwargs)
    return {
        "q": square,
        "k": square,
        "v": square,
        "o": square,
        "up": array(*lead, width, 4 * width, **kwargs),
        "down": array(*lead, 4 * width, width, **kwargs),
    }
