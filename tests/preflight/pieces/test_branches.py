"""A choice by the platform: pieces of the branch that the platform takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

from hbmwatch._preflight import pieces
from hbmwatch._preflight.pieces.program import flatten

X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(12, 4)


def trace_of_products(x: Any) -> Any:
    """The sum over the diagonal of all products, as jnp.diagonal of jax 0.10 takes it."""
    every, rows = jnp.tanh(x @ x.T), jnp.arange(x.shape[0])
    by_mask = lambda a: jnp.sum(jnp.eye(len(a), dtype=a.dtype) * a, axis=0)  # noqa: E731
    return jnp.sum(lax.platform_dependent(every, default=lambda a: a[rows, rows], mosaic=by_mask))


def scaled(x: Any) -> Any:
    """The sum of squares, scaled by a number that is another one on a GPU."""
    half = lax.platform_dependent(jnp.tanh(x), default=lambda a: a * 0.5, cuda=lambda a: a * 777.0)
    return jnp.sum(half * half)


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
def test_the_branch_of_a_pallas_kernel_is_not_part_of_the_program(gradient: bool) -> None:
    """Only the other branch is computed, in pieces of the rows of the matrix, in one loop."""
    function = jax.grad(trace_of_products) if gradient else trace_of_products
    closed = jax.make_jaxpr(function)(X)
    seed = next(each for each in pieces.seeds(closed) if each.primitive == "dot_general")
    made = pieces.rewrite(closed, seed, 3)
    (found,) = jax.jit(jaxpr_as_fun(made.jaxpr))(X)

    assert "cond" not in {node.name for node in flatten(closed).nodes}
    assert made.stages == 1 + gradient
    np.testing.assert_allclose(found, function(X), rtol=1e-5, atol=1e-6)


def test_a_choice_in_pieces_still_leaves_out_other_platforms() -> None:
    """Both branches run in pieces, and JAX lowers the one of its platform."""
    closed = jax.make_jaxpr(scaled)(X)
    given = next(each for each in pieces.seeds(closed) if each.argument == 0)
    made = pieces.rewrite(closed, given, 3)
    jitted = jax.jit(jaxpr_as_fun(made.jaxpr))

    (found,) = jitted(X)

    assert (made.stages, made.reasons) == (1, ())
    assert "777" not in jitted.lower(X).as_text()
    np.testing.assert_allclose(found, scaled(X), rtol=1e-5)
