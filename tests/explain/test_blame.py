"""Which program a report shows, where several could have run out of memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import PETABYTE, SIDE, SMALL, fails


@pytest.mark.slow
def test_the_right_program_is_found_among_its_twins(watch: Callable[..., Any]) -> None:
    """Of many live programs, twins with other shapes and lambdas too, the failing one counts."""
    alive = [jax.jit(lambda x, n=n: x * n) for n in range(12)]
    for program in alive:
        program(SMALL)
    step = watch(lambda x: jnp.broadcast_to(x[0], (x.shape[0], SIDE)) + x[-1])
    other = watch(lambda x: jnp.broadcast_to(x[1], (x.shape[0], 4 * SIDE)) + 1)
    step(SMALL[:2])
    step(SMALL[:3])

    wide = jnp.ones(SIDE)
    summaries = [fails(f, wide).summary for f in (step, other, step)]
    peaks = [summary.peak_bytes for summary in summaries if summary]

    argument = wide.nbytes
    assert peaks == [PETABYTE + argument, 4 * PETABYTE + argument, PETABYTE + argument]


def test_a_later_innocent_program_is_not_blamed(watch: Callable[..., Any]) -> None:
    """A program that is fed the poisoned result of another one is not shown as the cause."""

    def guilty(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x[0], (SIDE, 5 * SIDE)) @ jnp.ones(5 * SIDE)

    culprit = jax.jit(guilty)
    step = watch(lambda y: y.sum())
    poisoned = culprit(SMALL)

    oom = fails(step, poisoned)

    assert oom.summary is not None
    assert oom.summary.module == "jit_guilty"
    assert oom.report.notes[0].startswith("Memory ran out in jit_guilty(")


def test_a_program_does_not_ask_for_its_arguments(watch: Callable[..., Any]) -> None:
    """One that is given all of the poisoned result is innocent: it has only to read it."""

    def guilty(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return w * 2, jnp.broadcast_to(x[0], (SIDE, SIDE)) + 1

    culprit = jax.jit(guilty, donate_argnums=0)
    _, poisoned = culprit(jnp.ones((1024, 1024)), SMALL)  # a small program would not run ahead

    oom = fails(watch(lambda y: y[0, 0]), poisoned)

    assert oom.summary is not None
    assert oom.summary.module == "jit_guilty"
    live = oom.report.device.live if oom.report.device is not None else ()
    assert max((group.size_bytes for group in live), default=0) < 2**50  # it holds no memory


def test_memory_that_two_arrays_share_counts_once(watch: Callable[..., Any]) -> None:
    """Another view of an argument does not count, and two views of one array count once."""
    device = jax.devices()[0]
    x, other = jnp.ones((64, 64)), jnp.ones((32, 32))
    views = [jax.device_put(one, jax.sharding.SingleDeviceSharding(device)) for one in (x, other)]

    oom = fails(watch(lambda x: jnp.broadcast_to(x[0, 0], (SIDE, SIDE)) + 1), x)

    assert oom.report.device is not None and views
    groups = {group.shape: group.count for group in oom.report.device.live}
    assert (groups.get((64, 64)), groups[(32, 32)]) == (None, 1)


def named_twice(x: jax.Array) -> jax.Array:
    """Its name is that of a program, below; run without jit it runs another one."""
    return jnp.broadcast_to(x[0], (SIDE, SIDE))


@pytest.mark.parametrize("how", ["jit=False", "disable_jit"])
def test_what_is_not_jitted_runs_no_program_of_its_name(how: str) -> None:
    """The program that ran is shown, as a guess, and not one that is called like the function."""

    def other(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x[0], (SIDE, SIDE)) @ jnp.ones(SIDE)

    other.__name__ = named_twice.__name__
    other = jax.jit(other)
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.block_until_ready(other(SMALL))

    with contextlib.ExitStack() as stack:
        if how == "disable_jit":
            stack.enter_context(jax.disable_jit())
        oom = fails(watch_hbm(named_twice, jit=how == "disable_jit"), SMALL)

    assert oom.summary is not None
    assert oom.summary.module == "jit_broadcast_in_dim"
    assert oom.report.notes[0].startswith("Best guess: jit_broadcast_in_dim(")


def test_an_innocent_program_is_not_blamed_for_one_that_is_gone(
    watch: Callable[..., Any],
) -> None:
    """When the program that ran out of memory has been freed, no other one's peak is shown."""
    wide = 3 * SIDE
    poisoned = jax.jit(lambda x: jnp.broadcast_to(x[0], (SIDE, wide)) @ jnp.ones(wide))(SMALL)
    step = watch(lambda y: y.sum())

    with pytest.raises(HbmOomError) as caught:
        step(poisoned)

    assert caught.value.summary is None
    (sentence,) = caught.value.report.missing
    assert "no loaded program allocates" in sentence
