"""The reports of many processes as one: what is alike, and what differs where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hbmwatch._records.process import Process
from hbmwatch._records.report import ReportData


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over all processes of a group.

    Attributes:
        name: What is counted ("free", "live arrays").
        unit: "bytes" or "count".
        typical: The median.
        least: The smallest value.
        least_process: The process that has it.
        most: The largest value.
        most_process: The process that has it.
    """

    __module__ = "hbmwatch"

    name: str
    unit: str
    typical: int
    least: int
    least_process: Process
    most: int
    most_process: Process


@dataclass(frozen=True, slots=True)
class Outlier:
    """A process that differs from its group by more than the others.

    Attributes:
        process: The process.
        differences: By figure, how much more than typical it has; less is negative.
        others: What else differs, as sentences ("jax 0.9.0 instead of 0.10.2").
    """

    __module__ = "hbmwatch"

    process: Process
    differences: Mapping[str, int]
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldedGroup:
    """Processes that failed in the same function and memory.

    Attributes:
        headline: What ran out, with the figures of its typical process.
        processes: The processes, by index.
        free_bytes: What was free on the fullest device of each of them, in the same order; None
            where it is not known.
        figures: The figures that are not equal in all of them.
        outliers: The processes that stand out.
        typical: The place in the input of the report of its typical process.
    """

    __module__ = "hbmwatch"

    headline: str
    processes: tuple[Process, ...]
    free_bytes: tuple[int | None, ...]
    figures: tuple[Figure, ...]
    outliers: tuple[Outlier, ...]
    typical: int


@dataclass(frozen=True, slots=True)
class Consequence:
    """A process that did not run out of memory: it lost a process that it waited for.

    Attributes:
        process: The process, or the log, by name.
        sentence: What its log says, in one line.
        index: The process's index; None where its log does not tell it.
    """

    __module__ = "hbmwatch"

    process: str
    sentence: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class OtherLog:
    """A log that shows neither an OOM nor a lost process.

    Attributes:
        process: The process, or the log, by name.
        last_line: Its last line: the last action of a process that was killed or stopped, or often
            the error that ended the process.
        index: The process's index; None where the log does not tell it.
    """

    __module__ = "hbmwatch"

    process: str
    last_line: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class FoldedData:
    """The reports of a job's processes: what is alike is said once, and what differs is named.

    Attributes:
        process_count: How many processes the job had, as far as its reports know.
        groups: Processes that failed in the same function and memory, the largest group first.
        reports: The report of each group's typical process, in the order of the groups.
        absent: Indices of processes without a report or a log; empty if a log does not say whose
            it is.
        consequences: Processes that only lost another one.
        others: Logs that show neither an OOM nor a lost process.
        first: The process whose report has the earliest time; None where no report has a time.
        lead_seconds: How much earlier that was than the second one; None for a single report.
        older: Reports of the same processes that were left out because a newer one exists.
    """

    process_count: int
    groups: tuple[FoldedGroup, ...]
    reports: tuple[ReportData, ...]
    absent: tuple[int, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    others: tuple[OtherLog, ...] = ()
    first: Process | None = None
    lead_seconds: float | None = None
    older: int = 0

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that left a report."""
        return tuple(process for group in self.groups for process in group.processes)
