"""A call that is given what a failed call has lost by donation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, watch_hbm

BEFORE_DONATION = jax.__version_info__ < (0, 8)  # a failed call kept its arguments on the CPU


def fill(state: dict[str, jax.Array], scale: float) -> Any:
    """Updates its state, and asks for 4 PiB."""
    rows = jnp.broadcast_to(state["w"][:, None], (*state["w"].shape, 2**50))
    return {name: value + 1 for name, value in state.items()}, rows.sum(axis=0) * scale


def double(x: jax.Array) -> jax.Array:
    """A step that fits."""
    return x * 2


def notes_of_failure(step: Any, *args: Any) -> list[str]:
    """The notes of ours on the error that says that an array is deleted."""
    with pytest.raises((RuntimeError, ValueError), match="deleted") as caught:
        step(*args)
    assert not isinstance(caught.value, HbmOomError)
    return [note for note in getattr(caught.value, "__notes__", []) if note.startswith("hbmwatch")]


@pytest.mark.slow
@pytest.mark.skipif(BEFORE_DONATION, reason="this jax deletes nothing if a call fails on the CPU")
def test_a_retry_says_which_arguments_the_failed_call_has_lost() -> None:
    """Under the paths of the call that is given them, also if that is a call of another step."""
    step = watch_hbm(fill, donate_argnums=0)
    state = {name: jnp.ones(4) for name in ("v", "w")}
    with pytest.raises(HbmOomError) as oom:
        step(state, 1.0)
    assert oom.value.report.device is not None
    lost = oom.value.report.device.deleted
    assert "state['w']" in lost

    which, were, them = (
        ("state['v'] and state['w']", "were", "them")
        if len(lost) == 2
        else ("state['w']", "was", "it")
    )
    rule = "A donated argument is deleted even if the call fails"
    assert notes_of_failure(step, state, 1.0) == [
        f"hbmwatch: {which} {were} donated to a call of fill that ran out of memory. {rule}: "
        f"restore {them} before the next call."
    ]
    assert notes_of_failure(watch_hbm(double), state["w"]) == [
        f"hbmwatch: x was donated to a call of fill that ran out of memory. {rule}: restore it "
        "before the next call."
    ]


def test_an_array_that_was_deleted_otherwise_is_not_called_lost() -> None:
    """By its owner, or by a call that succeeded."""
    deleted, donated = jnp.ones(4), jnp.ones(4)
    deleted.delete()
    step = watch_hbm(double, donate_argnums=0)
    step(donated)

    assert notes_of_failure(step, deleted) == []
    assert not donated.is_deleted() or notes_of_failure(step, donated) == []
