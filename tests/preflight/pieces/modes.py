"""How a random program becomes a step: its value, its gradients, an update, or a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = Any
Args = dict[str, Any]


def _loss(forward: Callable[[Args], Array]) -> Callable[[Args, Args], Array]:
    def loss(floats: Args, others: Args) -> Array:
        return jnp.mean(jnp.sin(forward({**floats, **others})))

    return loss


def _parts(args: Args) -> tuple[Args, Args]:
    floats = {k: v for k, v in args.items() if k in "xywbt"}
    return floats, {k: v for k, v in args.items() if k not in floats}


def _value(forward: Callable[[Args], Array]) -> Callable[[Args], Any]:
    return forward


def _gradient(forward: Callable[[Args], Array]) -> Callable[[Args], Any]:
    return lambda args: jax.value_and_grad(_loss(forward))(*_parts(args))


def _update(forward: Callable[[Args], Array]) -> Callable[[Args], Any]:
    def step(args: Args) -> Any:
        floats, others = _parts(args)
        loss, grads = jax.value_and_grad(_loss(forward))(floats, others)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()) + 1e-3)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g / norm, floats, grads)

    return step


def _each_row(forward: Callable[[Args], Array]) -> Callable[[Args], Any]:
    """The gradient of each row alone, as in per-example gradients."""

    def step(args: Args) -> Any:
        floats, others = _parts(args)

        def one(row: Array) -> Any:
            x = jnp.broadcast_to(row, floats["x"].shape)
            return jax.grad(_loss(forward))({**floats, "x": x}, others)["w"]

        return jax.vmap(one)(floats["x"])

    return step


def forward_mode(forward: Callable[[Args], Array]) -> Callable[[Args], Any]:
    """The outputs, and how they change in one direction."""

    def step(args: Args) -> Any:
        floats, others = _parts(args)
        return jax.jvp(lambda f: forward({**f, **others}), (floats,), (floats,))

    return step


MODES = (_value, _value, _gradient, _gradient, _update, _each_row, forward_mode)
