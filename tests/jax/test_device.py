"""What else is on the device when a step runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.live import SIDE, SMALL, fails, fill, fill_donated


def test_donated_arguments_are_named_when_they_are_gone(watch: Callable[..., Any]) -> None:
    """After a failed donated step the report names the arguments that are deleted.

    jaxlib before 0.8 leaves them alive.
    """
    step = watch(fill_donated, donate_argnums=0)
    state = jnp.ones((4, 4))

    oom = fails(step, state, SMALL)

    assert oom.report.device is not None
    assert state.is_deleted() or jax.__version_info__ < (0, 8)
    assert oom.report.device.deleted == (("state",) if state.is_deleted() else ())


def test_other_live_arrays_are_listed_without_the_calls_own(watch: Callable[..., Any]) -> None:
    """The arguments of the call, and the outputs it returned before it failed, do not count."""
    other = jnp.ones((3, 5, 7))
    step = watch(lambda x: (fill(x) @ jnp.ones((SIDE, 3)), x[:, None] * jnp.ones((1, 11))))

    oom = fails(step, jnp.ones(13))

    assert oom.report.device is not None
    shapes = {live.shape: (live.count, live.size_bytes) for live in oom.report.device.live}
    assert shapes[other.shape] == (1, other.nbytes)
    assert not {(13,), (SIDE, 3), (13, 11)} & shapes.keys()


def test_a_buffer_of_any_size_is_reported(watch: Callable[..., Any]) -> None:
    """Sizes beyond what a double holds exactly are sizes all the same."""
    oom = fails(watch(lambda x: jnp.broadcast_to(x[0], (2**28, 2**28)) + 1), SMALL)

    assert oom.summary is not None
    assert oom.summary.peak_bytes == 2**58 + SMALL.nbytes
