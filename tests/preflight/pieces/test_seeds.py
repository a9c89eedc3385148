"""Which cuts are tried, and in which order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hbmwatch._preflight.pieces import seeds


def test_an_array_that_is_filled_with_a_constant_is_no_cut() -> None:
    """It is not in the place of a value of its shape that the arguments make."""

    def step(x: Any) -> Any:
        zeros, numbers = jnp.zeros((8, 16)), jnp.arange(8.0)[:, None]
        return jnp.sum(jnp.sin(x[:, None] * numbers.T[0, 0]) + zeros) + numbers, zeros

    closed = jax.make_jaxpr(step)(jnp.ones(8))
    found = {(each.primitive, each.size) for each in seeds(closed) if each.nbytes == 8 * 16 * 4}

    assert found == {("add", 8), ("add", 16)}
