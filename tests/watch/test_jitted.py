"""A function that is jitted already is never jitted again, whatever wraps it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox
import flax.nnx
import jax
import jax.numpy as jnp
import pytest

from hbmwatch import watch_hbm
from hbmwatch._watch.jitted import holds_jitted

JITTED = jax.jit(lambda x: jnp.sum(x * x))


@flax.nnx.jit
def nnx_step(model: flax.nnx.Linear, x: jax.Array) -> jax.Array:
    """A step of flax.nnx."""
    return jnp.sum(model(x))


def plain(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write it."""

    @functools.wraps(wrapped)
    def call(*args: Any) -> Any:
        return wrapped(*args)

    return call


def linear() -> flax.nnx.Linear:
    """A model."""
    return flax.nnx.Linear(4, 4, rngs=flax.nnx.Rngs(0))


JITTED_ALREADY: dict[str, Callable[[], Any]] = {
    "jax.jit": lambda: JITTED,
    "functools.partial": lambda: functools.partial(JITTED),
    "a decorator": lambda: plain(JITTED),
    "two decorators": lambda: plain(functools.partial(plain(JITTED))),
    "jax.named_call": lambda: jax.named_call(JITTED, name="step"),
    "jax.profiler.annotate_function": lambda: jax.profiler.annotate_function(JITTED, name="step"),
    "flax.nnx.jit": lambda: nnx_step,
    "flax.nnx.cached_partial": lambda: flax.nnx.cached_partial(nnx_step, linear()),
    "equinox.filter_jit": lambda: equinox.filter_jit(lambda x: x),
    "equinox.debug.assert_max_traces": lambda: equinox.debug.assert_max_traces(
        JITTED, max_traces=3
    ),
    "a decorator around cached_partial": lambda: plain(flax.nnx.cached_partial(nnx_step, linear())),
}
NOT_JITTED: dict[str, Callable[[], Any]] = {
    "a function": lambda: lambda x: x,
    "jax.grad": lambda: jax.grad(JITTED),
    "jax.vmap": lambda: jax.vmap(JITTED),
    "jax.checkpoint": lambda: jax.checkpoint(JITTED),
    "flax.nnx.grad": lambda: flax.nnx.grad(nnx_step),
    "flax.nnx.vmap": lambda: flax.nnx.vmap(nnx_step),
    "flax.nnx.remat": lambda: flax.nnx.remat(nnx_step),
    "equinox.filter_grad": lambda: equinox.filter_grad(JITTED),
    "equinox.filter_vmap": lambda: equinox.filter_vmap(JITTED),
    "equinox.filter_checkpoint": lambda: equinox.filter_checkpoint(JITTED),
    "a decorator around jax.grad": lambda: plain(jax.grad(JITTED)),
}


@pytest.mark.parametrize("name", [*JITTED_ALREADY, *NOT_JITTED])
def test_what_is_jitted_is_found_through_any_wrapper(name: str) -> None:
    """A wrapper calls the jitted function; a transformation makes another function of it."""
    made = {**JITTED_ALREADY, **NOT_JITTED}[name]()

    assert holds_jitted(made) == (name in JITTED_ALREADY)


def test_a_cached_partial_works_as_before() -> None:
    """flax.nnx.cached_partial updates its model, watched or not."""
    optax = pytest.importorskip("optax")
    model = linear()
    optimizer = flax.nnx.Optimizer(model, optax.sgd(0.1), wrt=flax.nnx.Param)

    @flax.nnx.jit
    def step(model: flax.nnx.Linear, optimizer: Any, x: jax.Array) -> jax.Array:
        loss, grads = flax.nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return jnp.asarray(loss)

    watched = watch_hbm(flax.nnx.cached_partial(step, model, optimizer))
    losses = [float(watched(jnp.ones((2, 4)))) for _ in range(3)]

    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[2]
