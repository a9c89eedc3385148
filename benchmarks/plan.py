"""For how many programs does `plan` find a change with which they fit, and with which values?

The programs of tests/oom_programs that the compiler of their target rejects, 45 seconds for each.
The change is also made to the same program in small sizes, which runs on the CPU: "error" is how
far its outputs are from those without the change, as a part of the maximum of each.
`python -m benchmarks.plan full_logits hessian` plans some of them, and prints the whole plans.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax

from benchmarks._shrunk import builder, error_of, on_the_cpu
from benchmarks._timing import table, versions
from hbmwatch import Plan, PlanRow, plan
from hbmwatch._records.sizes import format_size
from tests.environment import QUIET, XLA_FLAGS
from tests.oom_programs import CASES, Case

SECONDS = float(os.environ.get("HBMWATCH_PLAN_SECONDS", "45"))
HEAD = ("program", "change", "kind", "proof", "needs", "with it", "error", "tries", "processor s")


class _Reached(Exception):
    """Ends the builder of a program where it would lower its step."""


def at_lowering(build: Callable[[], Any], use: Callable[..., Any]) -> Any:
    """What `use(step, *args)` returns for the step that a builder lowers, where it lowers it."""
    real, found = jax.jit, []

    def jit(fun: Any = None, **options: Any) -> Any:
        jitted = real(fun, **options)
        if not callable(fun):
            return jitted

        class Recorded:
            """The jitted step, until it is lowered."""

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return jitted(*args, **kwargs)

            def lower(self, *args: Any) -> Any:
                with mock.patch.object(jax, "jit", real):
                    found.append(use(jitted, *args))
                raise _Reached

        return Recorded()

    try:
        with mock.patch.object(jax, "jit", jit):
            build()
    except _Reached:
        pass
    return found[0]


def planned(case: Case, seconds: float = SECONDS) -> tuple[Plan, float]:
    """The plan for a program, and the processor seconds that it took, those of compilers too."""
    before = processor_seconds()
    limit = case.limit_mib and case.limit_mib << 20

    def ask(step: Any, *args: Any) -> Plan:
        return plan(step, *args, seconds=seconds, limit_bytes=limit)

    found: Plan = at_lowering(lambda: case.build(True), ask)
    return found, processor_seconds() - before


def processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def row_of(case: Case, found: Plan, seconds: float) -> list[str]:
    """What a plan found."""
    best = found.best or next((row for row in found.rows if row.fits), None)
    return [
        case.name,
        "none" if best is None else " + ".join(best.changes),
        "" if best is None else best.kind,
        "" if best is None else best.proof,
        size(found.before.peak_bytes),
        size(None if best is None else best.peak_bytes),
        "" if best is None else error(case, best),
        str(len(found.rows)),
        f"{seconds:.1f}",
    ]


def error(case: Case, row: PlanRow) -> str:
    """How far the values of the changed program are from its own, in small sizes."""
    if row.kind == "C":
        return ""
    try:
        with on_the_cpu():
            small, wide = (
                at_lowering(functools.partial(builder(case, wide=wide), True), lambda *x: x)
                for wide in (False, True)
            )
            return f"{error_of(row.edits, small[0], small[1:], wide[0]):.0e}"
    except Exception as reason:  # what cannot be compared is said, and the others still are
        return f"{type(reason).__name__}: {reason}"[:60]


def size(peak_bytes: int | None) -> str:
    """A peak, where it is known."""
    return "unknown" if peak_bytes is None else format_size(peak_bytes)


def summary(rows: Sequence[Sequence[str]]) -> str:
    """How many were found, by kind, and how long half of them took at most."""
    fitting = [row for row in rows if row[1] != "none"]
    kinds = Counter(row[2] for row in fitting)
    cpu = statistics.median(float(row[-1]) for row in rows)
    tries = statistics.median(int(row[-2]) for row in rows)
    same = kinds["A"] + kinds["B"]
    return (
        f"{len(rows)} programs: {len(fitting)} fit, {same} with the same values; median {tries:g} "
        f"tries, {cpu:.1f} processor seconds"
    )


def main(names: list[str]) -> None:
    """Print a row for each program that its compiler rejects."""
    os.environ |= {**QUIET, "XLA_FLAGS": XLA_FLAGS}
    jax.config.update("jax_platforms", "cpu")
    rows = []
    for case in [case for case in CASES if case.name in names] or CASES:
        start = time.monotonic()
        found, seconds = planned(case)
        if found.before.fits:
            continue
        rows.append(row_of(case, found, seconds))
        wall = time.monotonic() - start
        print(" | ".join(rows[-1]), f"({wall:.0f} s)", file=sys.stderr, flush=True)
        if names:
            print(found, "\n", file=sys.stderr, flush=True)
    print(f"{__doc__}\n{versions('jax', 'libtpu')}, {os.cpu_count()} cores\n")
    print(table(HEAD, rows))
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
