"""Asynchronous dispatch stays asynchronous: a watched call returns before the step has run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import watch_hbm

X = jnp.zeros((512, 512))


@jax.jit
def busy(x: jax.Array) -> jax.Array:
    """Half a second of work: a thousand times what it takes to dispatch the steps after it."""
    out: jax.Array = jax.lax.fori_loop(0, 100, lambda _, x: jnp.sin(x) @ x, x)
    return out


@pytest.mark.slow
def test_a_steady_step_is_not_waited_for() -> None:
    """Twenty steps are dispatched while the program that computes their argument still runs."""
    step: Any = watch_hbm(lambda x: x + 1)
    jax.block_until_ready(step(busy(X)))  # compiles, and waits

    x = busy(X)
    results = []
    for _ in range(20):
        x = step(x)
        results.append(x)
    ready = [result.is_ready() for result in results]

    assert ready == [False] * 20
    assert bool((x == 20).all())
