"""The report of many processes as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import clean, plural, ranges, sentence, wrapped
from hbmwatch._report.text import finding_lines

if TYPE_CHECKING:
    from hbmwatch._records.folded import Figure, FoldedData, FoldedGroup, Outlier
    from hbmwatch._records.process import Process

_SHOWN_OUTLIERS, _SHOWN_LOGS, _SHOWN_GROUPS = 8, 4, 4
# Hosts that a time server keeps agree to some milliseconds; others are seconds apart.
_SKEW_SECONDS = 1.0


def folded_text(folded: FoldedData, look: Look = PLAIN) -> str:
    """The whole report; by default below 100 columns, and plain."""
    lines = list(map(look.strong, wrapped(f"hbmwatch: {_count(folded)}", 0, look=look)))
    for group, report in list(zip(folded.groups, folded.reports))[:_SHOWN_GROUPS]:
        lines += _group_lines(group, look)
        lines += finding_lines(report, look)
    more = len(folded.groups) - _SHOWN_GROUPS
    lines += [f"  {plural(more, 'more group')}"] if more > 0 else []
    lines += _first(folded, look)
    if folded.absent:
        absent = f"no report of: {_processes(len(folded.absent))} {ranges(folded.absent)}"
        lines += wrapped(absent, look=look)
    lost = [(log.process, log.sentence) for log in folded.consequences]
    lines += _logs("did not run out of memory, but lost another process", lost, look)
    other = [
        (log.process, f"last line: {log.last_line}" if log.last_line else "it is empty")
        for log in folded.others
    ]
    lines += _logs("logged neither an OOM nor a lost process", other, look)
    if folded.older:
        left_out = f"note: {_older(folded.older)} left out."
        lines += wrapped(left_out, look=look)
    return "\n".join(map(look.marked, lines))


def _count(folded: FoldedData) -> str:
    """How many of all processes ran out of memory."""
    failed, count = len(folded.processes), folded.process_count
    what = "ran out of device memory"
    return (
        f"{failed} of {_processes(count)} {what}"
        if count > failed
        else (f"{_processes(failed)} {what}")
    )


def _group_lines(group: FoldedGroup, look: Look) -> list[str]:
    """One group: how many processes, what they say, and what differs."""
    size = len(group.processes)
    if size == 1:
        head = group.processes[0].label
    elif not group.outliers and not group.figures:
        head = f"{size} processes, all alike"
    else:
        head = f"{size} processes, {size - len(group.outliers)} alike"
    lines = wrapped(f"{clean(head)}: {sentence(group.headline)}", look=look)
    alike: dict[str, list[Process]] = {}
    for outlier in group.outliers:
        alike.setdefault(_differences(outlier), []).append(outlier.process)
    shown = list(alike.items())[:_SHOWN_OUTLIERS]
    for difference, processes in shown:
        lines += wrapped(f"{_names(processes)}: {difference}", indent=4, look=look)
    more = len(group.outliers) - sum(len(processes) for _, processes in shown)
    lines += [f"    {more} more {'process differs' if more == 1 else 'processes differ'}"] * (
        more > 0
    )
    for figure in group.figures:
        lines += wrapped(_spread(figure), indent=4, look=look)
    return lines


def _names(processes: Sequence[Process]) -> str:
    """The processes that differ in the same way: one by its label, several by their indices."""
    if len(processes) == 1:
        return clean(processes[0].label)
    return f"{_processes(len(processes))} ({clean(ranges([p.index for p in processes]), 60)})"


def _differences(outlier: Outlier) -> str:
    """What a process has more or less than the typical one."""
    found = [_more_or_less(name, delta) for name, delta in outlier.differences.items()]
    return sentence("; ".join([*found, *outlier.others]))


def _more_or_less(name: str, delta: int) -> str:
    """ "300 MiB less free", "2 live arrays more"."""
    which = "more" if delta > 0 else "less"
    if name == "live arrays":
        return f"{abs(delta)} live array{'' if abs(delta) == 1 else 's'} {which}"
    return f"{name}: {format_size(abs(delta))} {which}"


def _spread(figure: Figure) -> str:
    """The smallest and the largest value of a figure, and which processes have them."""
    show = str if figure.unit == "count" else format_size
    return (
        f"{figure.name}: {show(figure.least)} (process {figure.least_process.index}) to "
        f"{show(figure.most)} (process {figure.most_process.index}), "
        f"median {show(figure.typical)}"
    )


def _first(folded: FoldedData, look: Look) -> list[str]:
    """Who failed first, as far as the clocks can say."""
    if folded.first is None or folded.lead_seconds is None:
        return []
    one_host = len({process.host for process in folded.processes}) == 1
    lead = f"{folded.lead_seconds:.3f} s"
    time = clean(folded.first.time, 40)
    if one_host or folded.lead_seconds > _SKEW_SECONDS:
        clocks = "" if one_host else ", by each host's own clock"
        first = f"first: {clean(folded.first.label)} at {time}, {lead} before the next{clocks}"
        return wrapped(first, look=look)
    return wrapped(
        f"first: unknown; {clean(folded.first.label)} has the earliest time, {time}, but it is "
        f"only {lead} before the next, and the clocks of two hosts can differ by that much.",
        look=look,
    )


def _logs(what: str, logs: Sequence[tuple[str, str]], look: Look) -> list[str]:
    """Processes that left no report, and what their logs say."""
    if not logs:
        return []
    lines = wrapped(f"{_processes(len(logs))} {what}:", look=look)
    for name, says in logs[:_SHOWN_LOGS]:
        lines += wrapped(f"{clean(name, 60)}: {sentence(says)}", indent=4, look=look)
    more = len(logs) - _SHOWN_LOGS
    return lines + ([f"    and {more} more"] if more > 0 else [])


def _older(count: int) -> str:
    one = "1 older report of these processes is"
    return one if count == 1 else f"{count} older reports of these processes are"


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"
