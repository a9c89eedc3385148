"""jax.checkpoint placed by the library: outputs and gradients are those without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxpr_as_fun

from hbmwatch._jax.calls import Function
from hbmwatch._jax.placed_checkpoints import Placement, candidates, placed
from tests.jax.styles import MARKED, STYLES
from tests.jax.test_placed_checkpoints import block, checkpoints
from tests.programs import FAST_COMPILE


def largest_error(got: Any, expected: Any) -> float:
    """The largest difference of two trees, in parts of the largest value of each leaf."""
    structure: Any = jax.tree.structure(expected)
    assert jax.tree.structure(got) == structure
    return max(map(_error, jax.tree.leaves(got), jax.tree.leaves(expected)))


def _error(got: Any, expected: Any) -> float:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if not jnp.issubdtype(expected.dtype, jnp.floating):
        return 0.0 if np.array_equal(*(_plain(a) for a in (got, expected))) else 1.0
    one, other = (np.asarray(a, np.float64) for a in (got, expected))
    return float(np.max(np.abs(one - other)) / max(np.max(np.abs(other)), 1e-30))


def _plain(a: Any) -> Any:
    is_key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(a) if is_key else a)


WITH_X64: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where it is


@pytest.mark.parametrize("style", MARKED)
def test_the_gradients_are_the_same(style: str) -> None:
    """All outputs equal those without the checkpoint, to the rounding of float32."""
    fun, args = STYLES[style]()
    step = jax.jit(fun, compiler_options=FAST_COMPILE)
    expected = step(*args)

    changed = placed(step, candidates(step, *args)[0])

    assert largest_error(changed(*args), expected) <= (2e-2 if style == "bfloat16" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [False, True])
def test_groups_of_calls_keep_the_gradients(scanned: bool) -> None:
    """A checkpoint around each call, and one more around each three in a row."""

    def unrolled_loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(x, w) * 0.5
        return jnp.mean(x**2)

    def scanned_loss(weights: Any, x: Any) -> Any:
        carry = (x, jnp.int32(0))
        carry, ys = jax.lax.scan(
            lambda c, w: ((block(c[0], w) * 0.5, c[1] + 1), c[0][0]),
            carry,
            weights,
            reverse=True,
        )
        return jnp.mean(carry[0] ** 2) * carry[1] + jnp.sum(ys)

    with WITH_X64.enable_x64(True):  # the rounding of float32 grows from layer to layer
        weights = jax.random.normal(jax.random.key(0), (9, 8, 8)) * 0.3
        args: Any = (weights if scanned else list(weights), jnp.ones((64, 8)))
        loss = scanned_loss if scanned else unrolled_loss
        step = jax.jit(lambda *args: jax.value_and_grad(loss)(*args), compiler_options=FAST_COMPILE)

        changed = placed(step, next(p for p in candidates(step, *args) if p.group > 1))

        assert checkpoints(changed, *args) == (3 if scanned else 9 + 9 + 3)
        assert largest_error(changed(*args), step(*args)) <= 1e-12


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["sin", "product", "scan", "jit", "key"]), st.integers(0, 9)),
        min_size=2,
        max_size=9,
    ),
    st.integers(1, 3),
)
def test_any_calls_keep_the_gradients(calls: list[tuple[str, int]], group: int) -> None:
    """Calls that take several earlier values, in jits and scans, and that are used again later."""

    def part(kind: str, one: Any, two: Any) -> tuple[Any, Any]:
        return PARTS[kind](one, two), jnp.cos(one) * 2.0

    def loss(x: Any) -> Any:
        values = [x, x * 0.5]
        for kind, place in calls:
            values += part(kind, values[-1], values[place % len(values)])
        return sum(jnp.mean(value) for value in values)

    step = jax.jit(jax.value_and_grad(loss))
    x = jnp.linspace(0.1, 0.9, 4)
    line = part.__code__.co_firstlineno
    place = Placement(
        "part", "", 0, group, True, 0, Function(__file__, line, "part", is_users=True)
    )

    traced = placed(step, place).trace(x).jaxpr
    expected = step.trace(x).jaxpr

    assert str(traced).count("checkpoint[") + str(traced).count("remat2[") >= len(calls)
    with jax.disable_jit():  # each operation is compiled once for all examples
        got, wanted = (jaxpr_as_fun(each)(x) for each in (traced, expected))
    assert largest_error(got, wanted) <= 1e-5


PARTS: dict[str, Callable[[Any, Any], Any]] = {
    "sin": lambda one, two: jnp.sin(one) * two,
    "product": lambda one, two: jnp.outer(one, two) @ one,
    "scan": lambda one, two: jax.lax.scan(lambda c, x: (jnp.tanh(c * x), c), one, two)[0],
    "jit": jax.jit(lambda one, two: jnp.exp(-one) + two**2),
    "key": lambda one, two: one * two * jax.random.uniform(jax.random.key(1), one.shape),
}
