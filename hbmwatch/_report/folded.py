"""The reports of many processes as one report, and every way to show it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hbmwatch._records.folded import Consequence, FoldedData, OtherLog
from hbmwatch._records.process import Process
from hbmwatch._report.fold_text import folded_text
from hbmwatch._report.folding import fold_groups, newest_by_process, process_of
from hbmwatch._report.json import plain, report_dict

if TYPE_CHECKING:
    from hbmwatch._report.report import OomReport


_MOST_PROCESSES = 2**20  # a damaged report may give any count


@dataclass(frozen=True, slots=True)
class FoldedReport(FoldedData):
    """The reports of a job's processes: what is alike is said once, and what differs is named.

    The fields are those of FoldedData.
    """

    __module__ = "hbmwatch"

    def text(self) -> str:
        """The whole as text, below 100 columns."""
        return folded_text(self)

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-able values; each report as OomReport.to_dict() has it."""
        fields: dict[str, Any] = plain(self)
        return {**fields, "reports": [report_dict(report) for report in self.reports]}

    def to_html(self) -> str:
        """One HTML document that needs nothing else: the processes as a strip, and the text."""
        from hbmwatch._report.fold_html import folded_page

        return folded_page(self)


def fold_reports(
    reports: Iterable[OomReport],
    consequences: Sequence[Consequence] = (),
    others: Sequence[OtherLog] = (),
) -> FoldedReport:
    """One report of the reports of many processes of a job.

    Args:
        reports: In any order; of several reports of one process the newest counts.
        consequences: Processes that lost another one, as `hbmwatch fold` finds them in logs.
        others: Logs that tell neither of an OOM nor of a lost process.

    Raises:
        ValueError: There is neither a report nor a consequence.
    """
    given = list(reports)
    of_logs = [log.index for log in consequences] + [log.index for log in others]
    if not given and not consequences:
        raise ValueError("there are no reports to fold")
    places = newest_by_process(given)
    processes = [process_of(given[place]) for place in places]
    known = max((process.count for process in processes), default=0)
    count = known if known > 1 else len(processes) + len(of_logs)
    first, lead = _first(processes)
    groups = fold_groups(given, places)
    return FoldedReport(
        process_count=count,
        groups=groups,
        reports=tuple(given[group.typical] for group in groups),
        absent=_absent(processes, count, of_logs),
        consequences=tuple(consequences),
        others=tuple(others),
        first=first,
        lead_seconds=lead,
        older=len(given) - len(places),
    )


def _absent(
    processes: Sequence[Process], count: int, of_logs: Sequence[int | None]
) -> tuple[int, ...]:
    """The indices with neither a report nor a log."""
    if None in of_logs or not any(process.count > 1 for process in processes):
        return ()
    there = {process.index for process in processes} | set(of_logs)
    return tuple(n for n in range(min(count, _MOST_PROCESSES)) if n not in there)


def _first(processes: Sequence[Process]) -> tuple[Process | None, float | None]:
    """The process with the earliest time, and how many seconds before the second one it was."""
    timed = sorted(
        ((_seconds(process.time), place) for place, process in enumerate(processes)),
        key=lambda pair: pair[0] or 0.0,
    )
    known = [(seconds, place) for seconds, place in timed if seconds is not None]
    if not known:
        return None, None
    lead = known[1][0] - known[0][0] if len(known) > 1 else None
    return processes[known[0][1]], lead


def _seconds(time: str) -> float | None:
    """An ISO 8601 time in seconds since 1970; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
