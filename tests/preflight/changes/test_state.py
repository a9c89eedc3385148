"""Which arguments are optimizer state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
import pytest

from hbmwatch._preflight.changes.state import state_of
from hbmwatch._preflight.changes.tracing import call_of


def state_paths(step: Any, *args: Any) -> list[str]:
    """The paths of the arguments that are optimizer state."""
    call = call_of(jax.jit(step), args, {}, None)
    return [call.arguments[i].path for i in sorted(state_of(call))]


@pytest.mark.slow
def test_state_that_is_updated_every_few_steps_is_state() -> None:
    """optax.MultiSteps updates the moments in one branch of a cond, and keeps them in the other."""
    optimizer = optax.MultiSteps(optax.adam(0.1), every_k_schedule=4)

    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones((256, 256))}
    assert state_paths(step, params, optimizer.init(params), jnp.ones((8, 256))) == [
        "state.inner_opt_state[0].mu['w']",
        "state.inner_opt_state[0].nu['w']",
        "state.acc_grads['w']",
    ]


@pytest.mark.parametrize(
    ("other", "paths"),
    [(lambda m, x: m, ["moment"]), (lambda m, x: m @ x, [])],
    ids=["kept", "multiplied"],
)
def test_every_branch_keeps_the_shape_of_state(other: Any, paths: list[str]) -> None:
    """What one branch reads in a product is no state."""

    def step(moment: Any, x: Any) -> Any:
        return jax.lax.cond(x[0, 0] > 0, lambda m, x: 0.9 * m + 0.1 * x, other, moment, x), x[0]

    assert state_paths(step, jnp.ones((256, 256)), jnp.ones((256, 256))) == paths
