"""Which program a report shows, where several could have run out of memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._report.text import headline
from tests.live import PETABYTE, SIDE, SMALL, fails


def named(oom: HbmOomError) -> str:
    """The failing program as its profile names it."""
    assert oom.summary is not None
    return f"{oom.summary.module}({oom.summary.program_id})"


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
    assert oom.report.function == "<lambda>"
    assert headline(oom.report).startswith("hbmwatch: <lambda> failed: probably jit_guilty(")
    assert oom.report.notes[0] == (
        f"Memory probably ran out in {named(oom)} (1 program allocates this many bytes); the "
        "failing call was only given its result."
    )


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
    return jnp.broadcast_to(x[0], (SIDE, 13 * SIDE))  # no other test runs this one


@pytest.mark.parametrize("how", ["jit=False", "disable_jit"])
def test_what_is_not_jitted_runs_no_program_of_its_name(how: str) -> None:
    """The program of the operation that ran is shown, not one that is called like the function."""

    def other(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x[0], (SIDE, 13 * SIDE)) @ jnp.ones(13 * SIDE)

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
    # Below a function that JAX has wrapped, it has taken its own frames off the traceback.
    assert oom.report.program_is_guess == (how == "disable_jit")


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


def evaluate(x: jax.Array) -> jax.Array:
    """It and `train` request the same bytes, and their results have one shape."""
    return jnp.cos(x) * jnp.ones((SIDE, 7 * SIDE))


def train(x: jax.Array) -> jax.Array:
    """It is compiled before `evaluate`."""
    return jnp.sin(x) * jnp.ones((SIDE, 7 * SIDE))


class Twins:
    """Two live programs that request the same bytes, and ways to call one of them."""

    def __init__(self) -> None:
        self.train = jax.jit(train)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.train(2.0).block_until_ready()
        self.evaluate = jax.jit(evaluate).lower(2.0).compile()

    def named(self) -> None:
        step = self.train
        step(2.0).block_until_ready()

    def attribute(self) -> None:
        jax.block_until_ready([self.train(2.0)])

    def compiled(self) -> None:
        self.evaluate(2.0)

    def from_a_table(self) -> None:
        {"a": self.train}["a"](2.0).block_until_ready()


UNNAMED = "The error does not name the program. "
GUESS = UNNAMED + "It may be {}: 2 programs allocate this many bytes."
CALLED = {  # the program that the report shows, and whether that is certain
    Twins.named: ("jit_train", True),
    Twins.attribute: ("jit_train", True),
    Twins.compiled: ("jit_evaluate", True),
    Twins.from_a_table: ("jit_evaluate", False),
}


def test_the_line_that_failed_tells_programs_of_one_size_apart() -> None:
    """In a block, the program of a function that the line calls; else a guess that says so."""
    twins = Twins()
    found = {}
    for way in CALLED:
        with pytest.raises(HbmOomError) as caught, watch_hbm():
            way(twins)
        oom = caught.value
        module = oom.summary.module if oom.summary is not None else None
        found[way] = module, not oom.report.program_is_guess
        is_guess = oom.report.program_is_guess
        name = f"probably {named(oom)}" if is_guess else module
        figures = "ran out of memory at run time on CPU: requested 7.00 PiB"
        assert str(oom).splitlines()[-1] == f"hbmwatch: {name} {figures}"
        assert (oom.report.notes[0] == GUESS.format(named(oom))) == is_guess
        assert not is_guess or {f.certainty for f in oom.report.findings} == {"hint"}
        heads = [line for line in str(oom.report).splitlines() if "What to try" in line]
        assert heads == [
            f"  What to try first{f', if it was {named(oom)} that ran out' if is_guess else ''}"
        ]

    assert found == CALLED


def test_a_guess_is_not_in_the_fingerprint() -> None:
    """Two guesses have one fingerprint, which differs from that of a certain program."""
    twins = Twins()
    reports = []
    for way in (Twins.named, Twins.from_a_table):
        with pytest.raises(HbmOomError) as caught, watch_hbm():
            way(twins)
        reports.append(caught.value.report)
    certain, guess = reports
    other = replace(guess, summary=certain.summary)

    assert other.summary is not None and guess.summary is not None
    assert other.summary.module != guess.summary.module
    assert other.fingerprint() == guess.fingerprint() != certain.fingerprint()


def with_dimensions(count: int) -> Callable[[Any], jax.Array]:
    """A program that requests the same bytes for any count; its result has so many dimensions."""

    def program(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        large = (jnp.ones((SIDE, 9 * SIDE)) * x) @ jnp.ones(9 * SIDE)
        return large, x.reshape((1,) * count)

    program.__name__ = f"program_{count}"
    jitted = jax.jit(program)
    return lambda x: jitted(x)[1]


def test_a_failed_result_tells_programs_of_one_size_apart(watch: Callable[..., Any]) -> None:
    """Its shape is the program's that made it: of an argument, and at the end of a block."""
    makers = {f"program_{count}": with_dimensions(count) for count in (3, 2)}
    results = {name: maker(2.0) for name, maker in makers.items()}

    for name, result in results.items():
        oom = fails(watch(lambda x: x + 1), result)
        assert named(oom).startswith(f"jit_{name}(")
        assert oom.report.notes[0] == (
            f"Memory probably ran out in {named(oom)} (2 programs allocate this many bytes, and of "
            "these 1 program has a result like the array that failed); the failing call was only "
            "given its result."
        )
    for name, maker in makers.items():
        with pytest.raises(HbmOomError) as caught, watch_hbm():
            kept = maker(2.0)
        assert named(caught.value).startswith(f"jit_{name}(")
        del kept


def test_a_step_that_never_succeeded_did_not_make_its_argument(watch: Callable[..., Any]) -> None:
    """A step that requests as many bytes as the program whose failed result it was given."""
    maker = with_dimensions(3)
    failed = maker(2.0)
    step = watch(lambda x: maker(x[0]))

    oom = fails(step, failed)

    assert named(oom).startswith("jit_program_3(")
    assert oom.report.program_is_guess
