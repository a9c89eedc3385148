"""The logs of a job's processes, as `fold` takes them: a report of each that ran out of memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hbmwatch._cli.logs import open_log
from hbmwatch._messages.job_log import JobLog, read_job_log
from hbmwatch._records.folded import Consequence, OtherLog
from hbmwatch._records.process import Process
from hbmwatch._report.report import OomReport

_RANK = re.compile(r"(?:rank|proc|process|worker|task|host|pod|p)[-_.]?(\d{1,7})", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class RankLogs:
    """What the logs of a job's processes say.

    Attributes:
        reports: The last OOM of each log that has one.
        consequences: The logs of processes that lost another one.
        others: The logs that tell of neither.
    """

    reports: tuple[OomReport, ...]
    consequences: tuple[Consequence, ...]
    others: tuple[OtherLog, ...]

    def not_among(self, stored: Iterable[OomReport]) -> list[OomReport]:
        """The reports that are not stored as well, where they say more than in a log."""
        known = {(r.process.index, r.process.time) for r in stored if r.process is not None}
        return [
            r
            for r in self.reports
            if r.process is None or (r.process.index, r.process.time) not in known
        ]


def read_logs(files: Sequence[str]) -> RankLogs:
    """What the logs of a job's processes say, one of each process.

    Raises:
        CommandError: A log cannot be read.
    """
    names = _names(files)
    ranks = _ranks(files)
    reports, consequences, others = [], [], []
    for place, (file, name, rank) in enumerate(zip(files, names, ranks)):
        with open_log(file) as blocks:
            log = read_job_log(blocks)
        if log.oom is not None:
            reports.append(_report(log, name, place if rank is None else rank))
        elif log.lost is not None:
            consequences.append(Consequence(name, log.lost, rank))
        else:
            others.append(OtherLog(name, log.last_line, rank))
    return RankLogs(tuple(reports), tuple(consequences), tuple(others))


def _report(log: JobLog, name: str, rank: int) -> OomReport:
    """The OOM of a log, in the process that hbmwatch's own report names, if there is one."""
    assert log.oom is not None
    process = log.process or Process(index=rank, host=name)
    return OomReport(log.oom, function=log.function, process_index=process.index, process=process)


def _names(files: Sequence[str]) -> list[str]:
    """The files' names; where two have the same, as in folders of their own, the files' paths."""
    counts = Counter(Path(file).name for file in files)
    return [Path(file).name if counts[Path(file).name] == 1 else file for file in files]


def _ranks(files: Sequence[str]) -> list[int | None]:
    """The ranks by name: the only number in which the names differ, or one after "rank"."""
    parts = [_NUMBERS.split(file) for file in files]
    differing = {place for place, column in enumerate(zip(*parts)) if len(set(column)) > 1}
    if len(differing) == 1 and len({len(part) for part in parts}) == 1:
        (place,) = differing
        if place % 2:  # a number, as re.split returns texts and numbers in turn
            return [int(part[place]) for part in parts]
    found = [_RANK.search(Path(file).stem) for file in files]
    return [int(match[1]) if match else None for match in found]
