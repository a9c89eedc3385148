"""A plan: which changes are tried, in which order, what they need, and what plan returns."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Fit, Plan, PlanRow, fits, plan
from hbmwatch._preflight.changes import CHANGES
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.change import NO_TIME, Change, Edit
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.planning import Search
from hbmwatch._preflight.targets import target_of
from hbmwatch._preflight.tries import Tried, Tries
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport
from tests.preflight.changes.steps import arguments, differences, shapes, train_step

MIB, GIB = 2**20, 2**30
X = jax.ShapeDtypeStruct((256, 1024), jnp.float32)  # 1 MiB
STEP = jax.jit(train_step)


@functools.cache
def found() -> Plan:
    """The plan for a step that needs 6.4 MiB, and gets 2 MiB."""
    return plan(STEP, *shapes(arguments()), limit_bytes=2 * MIB, seconds=600)


def distance(x: Any, y: Any) -> Any:
    """A step that needs its arguments and nothing else."""
    return jnp.sum((x - y) ** 2)


@pytest.mark.slow
def test_changes_that_fit_together_are_found() -> None:
    """Constants and donation stay below the pieces, and the best row is compiled to the end."""
    best = found().best

    assert best is not None
    assert (best.changes, best.kind) == (("constants", "donation", "pieces"), "B")
    assert (best.fits, best.proof, best.limit_bytes) == (True, "compiled", 2 * MIB)
    assert best.total_bytes is not None
    assert best.total_bytes <= 2 * MIB < (found().before.total_bytes or 0)
    assert best.code.splitlines()[1] == (
        "jax.jit(step, donate_argnames='state'), and use only the returned values afterwards"
    )
    assert [row.fits for row in found().rows] == [True] + [False] * (len(found().rows) - 1)


@pytest.mark.slow
def test_the_step_with_the_best_change_fits_and_computes_the_same() -> None:
    """What apply returns can be asked about again, and called."""
    changed = found().apply(STEP)
    again = fits(changed, *shapes(arguments()), limit_bytes=2 * MIB)
    expected = STEP(*arguments())

    assert again.fits
    assert again.total_bytes == found().rows[0].total_bytes
    assert differences(changed(*arguments()), expected) == {}


@pytest.mark.slow
def test_what_was_not_tried_has_a_reason() -> None:
    """Every change was tried, or says why not."""
    tried = {name for row in found().rows for name in row.changes}
    keeping = {change.name for change in CHANGES if change.kind != "C"}

    assert tried | found().untried.keys() == keeping
    assert dict(found().untried) == {
        "output-sharding": "the step is not on a mesh of several devices",
        "state-sharding": "no argument is on a mesh of several devices",
        "sharding": "no argument is on a mesh of several devices",
        "in-loop": "no value is cast, or fetched from the host, before a loop that is its only "
        "reader",
        "inner-pieces": "the step fits with an earlier change",
        "constraint": "the step fits with an earlier change",
        "host-outputs": "the step fits with an earlier change",
        "host-state": "the step fits with an earlier change",
    }


@pytest.mark.slow
def test_a_plan_is_json() -> None:
    """The rows without their reports, and which of them is the best."""
    values = json.loads(json.dumps(found().to_dict()))

    assert values["best"] == 0
    assert values["rows"][0]["changes"] == ["constants", "donation", "pieces"]
    assert values["rows"][0]["proof"] == "compiled"
    assert "report" not in values["rows"][0]


@pytest.mark.slow
def test_a_step_that_fits_is_left_as_it_is() -> None:
    """Nothing is tried, and apply gives the step back."""
    answer = plan(STEP, *shapes(arguments()), limit_bytes=GIB)

    assert (answer.before.fits, answer.rows, answer.best) == (True, (), None)
    assert answer.apply(STEP) is STEP


@pytest.mark.slow
def test_arguments_that_are_too_large_end_the_search() -> None:
    """No change that keeps the values on the device is tried, and none is applied silently."""
    answer = plan(jax.jit(distance), X, X, limit_bytes=3 * MIB // 2)

    assert answer.notes == (
        "arguments and outputs alone need 2 MiB on a device, even if they are spread over all "
        "devices of the step; 1.5 MiB is available",
    )
    assert answer.untried["pieces"] == "this change makes neither arguments nor outputs smaller"
    assert (answer.rows[0].kind, answer.rows[0].fits) == ("C", True)
    assert answer.best is None
    with pytest.raises(ValueError, match="tried . changes?; none makes the step fit with the same"):
        answer.apply(distance)
    if jax.__version_info__ >= (0, 7):  # the compiler of jax 0.6 computes bfloat16 as float32
        assert answer.rows[0].changes == ("bfloat16",)
        changed = answer.rows[0].apply(jax.jit(distance))
        assert float(changed(jnp.ones(X.shape), jnp.zeros(X.shape))) == X.size


@pytest.mark.slow
def test_a_variant_of_the_user_can_be_the_best() -> None:
    """A variant is tried by its name, and apply puts it in the place of the step."""

    def narrow(x: Any, y: Any) -> Any:
        return jnp.sum(x) * 3

    answer = plan(jax.jit(distance), X, X, limit_bytes=3 * MIB // 2, variants={"half": narrow})

    assert answer.best is not None
    assert (answer.best.changes, answer.best.kind) == (("variant",), "C")
    assert answer.best.what == "the variant half"
    ones = jnp.ones(X.shape)
    assert float(answer.apply(jax.jit(distance))(ones, ones)) == 3 * ones.size


@pytest.mark.slow
def test_ctrl_c_gives_what_was_found_so_far() -> None:
    """An interrupt ends the search, not the plan."""

    def interrupt(what: str, fit: Fit) -> None:
        raise KeyboardInterrupt

    answer = plan(STEP, *shapes(arguments()), limit_bytes=2 * MIB, on_try=interrupt)

    assert [row.changes for row in answer.rows] == [("constants",)]
    assert answer.error == "interrupted"
    assert str(answer).endswith("the search ended early: interrupted")


@pytest.mark.slow
def test_an_error_of_the_caller_ends_the_plan() -> None:
    """What on_try raises is the caller's, and is not taken for a change that does not work."""

    def fail(what: str, fit: Fit) -> None:
        raise ZeroDivisionError(what)

    with pytest.raises(ZeroDivisionError, match="closed-over array"):
        plan(STEP, *shapes(arguments()), limit_bytes=2 * MIB, on_try=fail)


@pytest.mark.slow
def test_a_step_may_have_a_keyword_of_plan() -> None:
    """It is passed in the step."""
    step = jax.jit(lambda x, seconds: x * seconds, static_argnames="seconds")
    given = functools.partial(step, seconds=3)
    answer = plan(given, X, limit_bytes=GIB)

    assert answer.before.fits
    assert float(answer.apply(given)(jnp.ones(()))) == 3.0


def test_without_time_nothing_is_tried() -> None:
    """The step as it is has no verdict, and each change says that there was no time."""
    answer = plan(STEP, *shapes(arguments()), limit_bytes=2 * MIB, seconds=0)

    assert answer.before.fits is None
    assert answer.rows == ()
    assert set(answer.untried.values()) == {"no time was left"}
    assert answer.error == "no time was left"


def test_nothing_begins_that_takes_longer_than_the_time_that_is_left() -> None:
    """A trace cannot be interrupted: with less time than the first one took, there is no other."""
    call = call_of(STEP, shapes(arguments()), {}, None)
    tries = Tries(target_of(call.lowered), time.monotonic() + 600, 600, 2 * MIB, trace_s=700)
    search = Search(tries, CHANGES)
    before, _ = tries.compile(call, "assigned")
    search.run(Tried(call, (), before, None))

    assert tries.done == []
    assert search.untried == dict.fromkeys((change.name for change in CHANGES), NO_TIME)
    assert search.error == NO_TIME


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Edit):
    """An edit that changes nothing, and is not expected to."""

    traces_again = True

    def on(self, call: Call) -> Call:
        """The call itself."""
        return call

    def is_worth_a_compile(self, before: Call, after: Call) -> bool:
        """It is not."""
        return False


def test_what_seems_to_save_nothing_is_a_base_where_nothing_else_fits() -> None:
    """It is compiled only then, because another change may need it."""

    def edits(call: Call, facts: Any, asked: Any) -> Any:
        yield Nothing(what="nothing", code="")

    def after(*changes: Change) -> list[tuple[str, ...]]:
        call = call_of(jax.jit(distance), (X, X), {}, None)
        tries = Tries(target_of(call.lowered), time.monotonic() + 600, 600, limit_bytes)
        before, facts = tries.compile(call, "assigned")
        search = Search(tries, changes)
        search.run(Tried(call, (), before, facts))
        return [tuple(change.name for change, _ in tried.steps) for tried in tries.done]

    limit_bytes = 5 * MIB // 2
    change = Change("nothing", "B", "the same", edits)

    assert after(change) == [("nothing",)]
    limit_bytes = MIB  # the arguments are larger, and the change frees none
    assert after(change) == []


def test_what_cannot_be_planned_is_refused() -> None:
    """No limit, no time, two variants of one name, a variant that is no function."""
    with pytest.raises(ValueError, match="the memory limit of cpu is unknown; pass limit_bytes"):
        plan(jax.jit(distance), X, X)
    with pytest.raises(ValueError, match="^seconds must be a number of seconds"):
        plan(jax.jit(distance), X, X, limit_bytes=1, seconds=float("nan"))
    with pytest.raises(ValueError, match="^memory_fraction"):
        plan(jax.jit(distance), X, X, limit_bytes=1, memory_fraction=2)
    with pytest.raises(ValueError, match="two variants have the same name"):
        plan(jax.jit(distance), X, X, limit_bytes=1, variants=[distance, distance])
    number: Any = {"x": 3}
    with pytest.raises(TypeError, match="the variant x is int, not a function"):
        plan(jax.jit(distance), X, X, limit_bytes=1, variants=number)
    for none, what in ((distance, "function"), (2.0, "float"), ("fast", "str")):
        variants: Any = none
        with pytest.raises(TypeError, match=f"variants is {what}, not functions or a mapping"):
            plan(jax.jit(distance), X, X, limit_bytes=1, variants=variants)


def verdict(fitting: bool | None, gib: float, proof: Any = "assigned", error: str = "") -> Fit:
    """A verdict of a v5e."""
    size = int(gib * GIB)
    report = OomReport(message=OomMessage(""))
    return Fit(fitting, size, size, 15 * GIB, "v5e", proof, report, error=error)


def row(changes: str, kind: Any, fit: Fit, where: tuple[str, ...] = ()) -> PlanRow:
    """A row that says what its changes are called."""
    code = "\n".join(f"write {change}" for change in changes.split())
    return PlanRow(tuple(changes.split()), kind, f"doing {changes}", code, where, "the same", fit)


TEXT = """\
unchanged step: does not fit v5e: needs 20.00 GiB; 15.00 GiB available; 5.00 GiB over the limit; \
from the buffer assignment; the size of the code is not included
arguments are large
  1. (best) donation + pieces [B: the same values up to rounding]: fits v5e: needs 12.00 GiB; \
15.00 GiB available; 3.00 GiB left; compiled
     write: write donation
     write: write pieces
     where: model.py:40
     values: the same
tried:
     donation: doing donation: does not fit, peak 18.00 GiB (the smallest of 2 tries)
     bfloat16: doing bfloat16: no verdict: TypeError: float32 only
not tried:
     sharding: no mesh
the search ended early: interrupted"""


@pytest.mark.parametrize(
    ("fitting", "said"), [(False, "none makes the step fit"), (None, "no change is known to fit")]
)
def test_a_try_without_a_verdict_is_not_said_not_to_fit(fitting: bool | None, said: str) -> None:
    """It might fit."""
    rows = (row("donation", "A", verdict(False, 18)), row("pieces", "B", verdict(fitting, 17)))
    assert f"tried 2 changes; {said}" in str(Plan(verdict(False, 20), rows)).splitlines()


def test_a_plan_reads_as_text() -> None:
    """What fits, with what to write; what does not; what was not tried; why it ended."""
    answer = Plan(
        before=verdict(False, 20),
        rows=(
            row("donation pieces", "B", verdict(True, 12, "compiled"), ("model.py:40",)),
            row("donation", "A", verdict(False, 18)),
            row("donation", "A", verdict(False, 19)),
            row("bfloat16", "C", verdict(None, 0, error="TypeError: float32 only")),
        ),
        untried={"sharding": "no mesh"},
        notes=("arguments are large",),
        error="interrupted",
    )

    assert str(answer) == TEXT


def test_a_plan_without_a_fit_counts_what_was_tried() -> None:
    """It never says that nothing fits."""
    answer = Plan(before=verdict(False, 20), rows=(row("donation", "A", verdict(False, 18)),))

    assert str(answer).splitlines()[1] == "tried 1 change; none makes the step fit"
    with pytest.raises(ValueError, match="tried 1 change; none makes the step fit. "):
        answer.apply(STEP)


@pytest.mark.parametrize(
    ("peak", "said"), [(16, "peak 16.00 GiB"), (14, "needs 15.50 GiB (peak 14.00 GiB)")]
)
def test_a_row_says_how_much_is_too_much(peak: int, said: str) -> None:
    """The total is named where the peak alone would fit."""
    size = int(15.5 * GIB) if peak < 15 else peak * GIB
    fit = Fit(False, peak * GIB, size, 15 * GIB, "v5e", "assigned", OomReport(OomMessage("")))
    rows = (row("donation", "A", fit),)

    lines = str(Plan(verdict(False, 20), rows)).splitlines()
    assert f"     donation: doing donation: does not fit, {said}" in lines
