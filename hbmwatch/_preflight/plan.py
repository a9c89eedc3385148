"""A step that does not fit a device: changes with which it does, found by compiling them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.verdict import verdict
from hbmwatch._preflight.ahead import Ahead
from hbmwatch._preflight.changes import CHANGES
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.changes.variants import variants as trying
from hbmwatch._preflight.fits import check_options, check_seconds
from hbmwatch._preflight.measured import measured
from hbmwatch._preflight.planning import Search
from hbmwatch._preflight.plans import Plan, PlanRow
from hbmwatch._preflight.targets import Target, resolve, target_of
from hbmwatch._preflight.tries import Tried, Tries
from hbmwatch._preflight.verdicts import Fit

Variants = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
# How much of the time the compile of the step as it is may take.
_SHARE_OF_FIRST = 0.4


def plan(
    step: Callable[..., Any],
    /,
    *args: Any,
    on: Any = None,
    seconds: float = 60.0,
    variants: Variants | None = None,
    keep_values: bool = True,
    limit_bytes: int | None = None,
    timeout_s: float = 600.0,
    memory_fraction: float | None = None,
    on_try: Callable[[str, Fit], object] | None = None,
    **kwargs: Any,
) -> Plan:
    """Find a change with which a step fits a device, according to the compiler of that device.

    Nothing runs, and no device memory is touched: only the shapes of the arguments count. Changes
    without recomputation are tried first, then changes that do more work for the same values, then
    changes with other values. The first that fits ends the search, and is compiled to the end. How
    fast a changed step is, is not measured.

    Args:
        step: A function, jitted or not, watched or not, a method, or what flax.nnx.jit or
            equinox.filter_jit returns.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs, on any devices.
        on: The target, as for `fits`.
        seconds: When to stop, the compile to the end included. The plan then has what was found so
            far. A trace of the step is not interrupted, but none begins that would take longer.
        variants: Your own variants of the step, to be tried after the changes that keep the values;
            by name, or as functions with names.
        keep_values: A change with other values is tried only if no other fits; False allows it to
            be the best row.
        limit_bytes: A limit to use instead of the device's.
        timeout_s: Seconds for each compile.
        memory_fraction: As for `fits`.
        on_try: Called with each change, as a sentence, and its verdict.
        kwargs: Keyword arguments of the step. If one has the name of a keyword of plan, bind it
            to the step instead: functools.partial(step, seconds=3).

    Raises:
        ValueError: As for `fits`; or the target has no known limit, and limit_bytes was not given.
        ImportError: The target's compiler is not installed.
        TypeError: The step cannot be lowered for the target, or jax.jit does not compile it.
    """
    check_options("assigned", limit_bytes, timeout_s, memory_fraction)
    check_seconds("seconds", seconds)
    own = named_variants(variants)
    start = time.monotonic()
    named = resolve(on, memory_fraction) if on is not None else None
    tracing = time.monotonic()
    call = call_of(step, args, kwargs, None if named is None else named.platform)
    trace_s = time.monotonic() - tracing
    target = named or target_of(call.lowered, memory_fraction)
    _check_limit(target, limit_bytes)
    until = start + seconds
    beside = Ahead(call, target, limit_bytes or target.limit_bytes, trace_s, until)
    with contextlib.closing(beside) as ahead:
        tries = Tries(target, until, timeout_s, limit_bytes, on_try, trace_s, ahead)
        found = _planned(tries, ahead, call, own, keep_values)
    return dataclasses.replace(found, seconds=time.monotonic() - start)


def _planned(
    tries: Tries,
    ahead: Ahead,
    call: Call,
    own: Mapping[str, Callable[..., Any]],
    keep_values: bool,
) -> Plan:
    """The plan, without how long it took."""
    fit, facts = tries.compile(call, "assigned", _SHARE_OF_FIRST, meanwhile=ahead.look)
    if fit.fits:
        ahead.close()
    if fit.fits and fit.proof == "assigned":
        proved, facts = tries.compile(call, "compiled")
        fit = proved if proved.fits is not None else fit
    if fit.fits:
        return Plan(fit, keep_values=keep_values)
    keeping = [change for change in CHANGES if change.kind != "C"]
    others = [change for change in CHANGES if change.kind == "C"]
    changes = (*keeping, *([trying(own)] if own else []), *others)
    search = Search(tries, changes)
    search.run(Tried(call, (), fit, facts))
    rows = tuple(_row(tried) for tried in sorted(tries.done, key=search.rank))
    return Plan(
        before=_with_measured(fit, facts, rows),
        rows=rows,
        untried=MappingProxyType(search.untried),
        notes=tuple(search.notes),
        keep_values=keep_values,
        error=search.error,
    )


def _with_measured(before: Fit, facts: ProgramFacts | None, rows: Sequence[PlanRow]) -> Fit:
    """The verdict on the step as it is, whose findings say what the plan measured of them."""
    if facts is None:
        return before
    findings = measured(before.report.findings, before, rows)
    sentence = verdict(facts, findings) if before.report.verdict else ""
    report = dataclasses.replace(before.report, findings=findings, verdict=sentence)
    return dataclasses.replace(before, report=report)


def named_variants(variants: Variants | None) -> dict[str, Callable[..., Any]]:
    """The variants by their names.

    Raises:
        TypeError: They are neither functions nor a mapping to functions.
        ValueError: Two of them have the same name.
    """
    if variants is None:
        return {}
    if isinstance(variants, Mapping):
        found = dict(variants)
    else:
        if isinstance(variants, str) or not isinstance(variants, Iterable):
            what = type(variants).__name__
            raise TypeError(f"variants is {what}, not functions or a mapping from names to them")
        given = list(variants)
        found = {getattr(one, "__name__", type(one).__name__): one for one in given}
        if len(found) < len(given):
            raise ValueError("two variants have the same name: pass a mapping from names to them")
    for name, variant in found.items():
        if not callable(variant):
            raise TypeError(f"the variant {name} is {type(variant).__name__}, not a function")
    return found


def _check_limit(target: Target, limit_bytes: int | None) -> None:
    if limit_bytes is None and target.limit_bytes is None:
        raise ValueError(f"the memory limit of {target} is unknown; pass limit_bytes")


def _row(tried: Tried) -> PlanRow:
    """A try as the user reads it."""
    changes = [change for change, _ in tried.steps]
    edits = tuple(edit for _, edit in tried.steps)
    kinds: list[Any] = [change.kind for change in changes]
    return PlanRow(
        changes=tuple(change.name for change in changes),
        kind=max(kinds),
        what=", ".join(edit.what for edit in edits),
        code="\n".join(edit.code for edit in edits),
        where=tuple(dict.fromkeys(line for edit in edits for line in edit.where)),
        values="; ".join(
            dict.fromkeys(change.values for change in changes if change.kind == max(kinds))
        ),
        fit=tried.fit,
        edits=edits,
    )
