"""Timing on a noisy machine, and tables of the results."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping, Sequence


def fastest(
    cases: Mapping[str, Callable[[], object]],
    *,
    runs: int = 25,
    calls: int = 200,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each case takes: the minimum of interleaved runs.

    Other programs only ever add time, so the minimum is the figure that repeats. Interleaving
    spreads a slow spell over all cases.

    Args:
        cases: Calls by name; each is made once beforehand.
        runs: How often each case is timed.
        calls: How many calls are timed together.
        clock: Seconds since some moment; time.thread_time counts the work of this thread alone.
    """
    for call in cases.values():
        call()
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(runs):
        for name, call in cases.items():
            best[name] = min(best[name], _timed(call, calls, clock))
    return best


def _timed(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    repeated = [None] * calls
    start = clock()
    for _ in repeated:
        call()
    return (clock() - start) / calls


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head as a Markdown table, the first column flush left."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )


def versions(*packages: str) -> str:
    """The interpreter and the packages that are installed, with their versions."""
    named = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            named.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(named)
