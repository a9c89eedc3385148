"""Finds what the reports of many processes have in common, and which processes stand out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.folded import Figure, FoldedGroup, Outlier
from hbmwatch._records.process import Process
from hbmwatch._records.report import limit_of
from hbmwatch._report.json import fingerprint
from hbmwatch._report.text import one_line

if TYPE_CHECKING:
    from hbmwatch._records.report import ReportData

# Processes of one program differ by a little: the sizes of their batches, of NCCL's or the input
# pipeline's buffers. One that differs from the median by more than this share of the limit, and by
# more than the bytes below, has something that the others do not have.
_SHARE_OF_LIMIT = 0.01
_LEAST_BYTES = 2**24

_FIGURES: Mapping[str, Callable[[ReportData], int | None]] = {
    "requested": lambda r: r.message.requested_bytes,
    "needed": lambda r: r.message.used_bytes,
    "peak": lambda r: r.summary.peak_bytes if r.summary else None,
    "limit": limit_of,
    "in use": lambda r: r.device.in_use_bytes if r.device else r.message.totals.get("InUse"),
    "free": lambda r: free_bytes(r),
    "largest free block": lambda r: (
        r.message.largest_free_bytes or (r.device.largest_free_bytes if r.device else None)
    ),
    "live arrays' bytes": lambda r: _live(r, lambda group: group.size_bytes),
    "live arrays": lambda r: _live(r, lambda group: group.count),
}
COUNTS = frozenset({"live arrays"})


def process_of(report: ReportData) -> Process:
    """The process of a report; one of an older version has its index alone."""
    return report.process or Process(index=report.process_index)


def free_bytes(report: ReportData) -> int | None:
    """What was free on the device, by the message or by the allocator's figures."""
    if report.message.free_bytes is not None:
        return report.message.free_bytes
    device = report.device
    if device is None or device.limit_bytes is None or device.in_use_bytes is None:
        return None
    return device.limit_bytes - device.in_use_bytes


def _live(report: ReportData, size: Callable[..., int]) -> int | None:
    return None if report.device is None else sum(map(size, report.device.live))


def newest_by_process(reports: Sequence[ReportData]) -> list[int]:
    """The places of the newest report of each process, in the order of the processes."""
    newest: dict[tuple[int, str], int] = {}
    for place, report in enumerate(reports):
        process = process_of(report)
        # A job that was started again may run on other hosts.
        key = (process.index, "" if process.count > 1 else process.host)
        other = newest.get(key)
        if other is None or process_of(reports[other]).time <= process.time:
            newest[key] = place
    return [newest[key] for key in sorted(newest)]


def fold_groups(reports: Sequence[ReportData], places: Iterable[int]) -> tuple[FoldedGroup, ...]:
    """Groups of one function and memory, the largest first."""
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(fingerprint(reports[place]), []).append(place)
    folded = [_fold(reports, members) for members in groups.values()]
    return tuple(sorted(folded, key=lambda group: -len(group.processes)))


def _fold(reports: Sequence[ReportData], members: Sequence[int]) -> FoldedGroup:
    """One group."""
    processes = [process_of(reports[place]) for place in members]
    values = {name: [read(reports[place]) for place in members] for name, read in _FIGURES.items()}
    figures = {
        name: figure
        for name, column in values.items()
        if (figure := _figure(name, column, processes)) is not None
    }
    facts = [_facts(reports[place]) for place in members]
    usual = {
        name: Counter(row.get(name, "") for row in facts).most_common(1)[0][0]
        for name in dict.fromkeys(name for row in facts for name in row)
    }
    limit = max((size for size in values["limit"] + values["peak"] if size), default=0)
    outliers = [
        Outlier(processes[row], differences, others)
        for row in range(len(members))
        for differences, others in [
            (_differences(figures, values, row, limit), _others(facts[row], usual))
        ]
        if differences or others
    ]
    standing_out = {outlier.process for outlier in outliers}
    typical = next(
        (place for place, process in zip(members, processes) if process not in standing_out),
        members[0],
    )
    return FoldedGroup(
        headline=one_line(reports[typical]),
        processes=tuple(processes),
        free_bytes=tuple(values["free"]),
        figures=tuple(figure for figure in figures.values() if figure.least < figure.most),
        outliers=tuple(outliers),
        typical=typical,
    )


def _figure(name: str, column: Sequence[int | None], processes: Sequence[Process]) -> Figure | None:
    """One figure over the processes; None where no process has it."""
    known = [(size, row) for row, size in enumerate(column) if size is not None]
    if not known:
        return None
    least, most = min(known), max(known, key=lambda pair: (pair[0], -pair[1]))
    return Figure(
        name=name,
        unit="count" if name in COUNTS else "bytes",
        typical=statistics.median_low(size for size, _ in known),
        least=least[0],
        least_process=processes[least[1]],
        most=most[0],
        most_process=processes[most[1]],
    )


def _differences(
    figures: Mapping[str, Figure], values: Mapping[str, Sequence[int | None]], row: int, limit: int
) -> dict[str, int]:
    """By how much a process differs from the median, where that is much."""
    found = {}
    for name, figure in figures.items():
        size = values[name][row]
        allowed = 0 if figure.unit == "count" else max(_SHARE_OF_LIMIT * limit, _LEAST_BYTES)
        if size is not None and abs(size - figure.typical) > allowed:
            found[name] = size - figure.typical
    return found


def _facts(report: ReportData) -> dict[str, str]:
    """The values that are not numbers: versions, the device, the findings."""
    facts = dict(report.versions)
    if report.device is not None:
        facts["device"] = report.device.device_kind
    facts["first finding"] = report.findings[0].slug if report.findings else "none"
    return facts


def _others(facts: Mapping[str, str], usual: Mapping[str, str]) -> tuple[str, ...]:
    """What differs from the usual."""
    return tuple(
        f"{name} {facts.get(name) or 'missing'} instead of {value or 'missing'}"
        for name, value in usual.items()
        if facts.get(name, "") != value
    )
