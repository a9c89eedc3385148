"""Finds the wordings in a flat text, and groups those that are about the same OOM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hbmwatch._messages.figures import read_figures
from hbmwatch._messages.table import WORDINGS
from hbmwatch._messages.wording import Wording

# The most characters between two statements about one OOM; and between an error and the cause that
# it quotes, or a code and its error.
_FAR = 1 << 16
_NEAR = 2000
# An OOM's text ends with the next OOM, with a traceback, or this many characters on.
_REACH = 1 << 20
# Two figures of one request differ by less than this: allocators round up to 256 bytes.
_ROUNDING = 255

_LOGS = {"log", "retry_log"}
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
    "The stack trace below excludes JAX-internal frames",
    "terminate called after throwing an instance of",
    "what():",
)
# XLA logs an error of an execution with these words in front of it, before it raises the error.
_LOGGED = re.compile(r"Execution of replica \d{1,9} failed: (?:[A-Za-z_ ]{1,30}: )?[A-Z]?$")
_LOGGED_LENGTH = 100
# From the title of an issue to the log in its first lines.
_TITLE_REACH = 300
# A block of code ends, and after a person's words another one begins.
_OTHER_BLOCK = re.compile(r"(?:^| )```(?!\S) ?[^`]{0,2000} ```(?!`)")
# Several words in capitals: somebody has written a message so.
_CAPITALS = re.compile(r"(?:\b[A-Z]{2,30} ){2}")


class Statement(NamedTuple):
    """A wording that was found in the flat text.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        row: Its row in the table of wordings.
        match: Its match.
    """

    start: int
    end: int
    row: int
    match: re.Match[str]

    @property
    def wording(self) -> Wording:
        """The wording."""
        return WORDINGS[self.row]


class Oom(NamedTuple):
    """The statements about one OOM, and the part of the flat text that is about it.

    Attributes:
        statements: At least one, in order.
        previous_end: Where the last statement of the OOM before it ends; 0 for the first one.
        start: Where its part of the text begins.
        end: Where its part of the text ends.
    """

    statements: list[Statement]
    previous_end: int
    start: int
    end: int

    @property
    def stated_end(self) -> int:
        """Where its last statement ends."""
        return self.statements[-1].end


def find_ooms(flat_text: str) -> Iterator[Oom]:
    """The OOMs that a flat text states, in order."""
    group: list[Statement] = []
    earlier: dict[int, Statement] = {}  # extra figures that belong to no OOM so far, by row
    previous_end = last_match_end = 0
    for statement in find_statements(flat_text):
        if group and _same_oom(flat_text, statement, group, last_match_end):
            if statement.row not in {other.row for other in group}:
                group.append(statement)
            earlier.clear()
        elif statement.wording.source == "extra_figures":
            earlier[statement.row] = statement
            continue
        else:
            next_group = [*_figures_before(statement, earlier), statement]
            if group:
                end = _oom_end(flat_text, last_match_end, next_group[0].start)
                yield Oom(group, previous_end, _oom_start(flat_text, group, previous_end), end)
            previous_end, group, earlier = last_match_end, next_group, {}
        last_match_end = statement.end
    if group:
        end = _oom_end(flat_text, last_match_end, len(flat_text))
        yield Oom(group, previous_end, _oom_start(flat_text, group, previous_end), end)


def _figures_before(statement: Statement, earlier: dict[int, Statement]) -> list[Statement]:
    """The extra figures that an allocator logged shortly before an error of its platform."""
    platform = statement.wording.implies.platform
    figures = sorted(earlier.values())
    return [
        figure
        for figure in figures
        if statement.start - figures[-1].end < _NEAR
        and figures[-1].end - figure.start < _NEAR
        and platform in (None, figure.wording.implies.platform)
    ]


def find_statements(flat_text: str) -> list[Statement]:
    """All wordings in a flat text, in order; of those that overlap, the table's first."""
    is_in_capitals = flat_text.isupper() or _CAPITALS.search(flat_text)
    writings = (False, True) if is_in_capitals else (False,)
    matches = [
        (match.start(), row, match)
        for in_capitals in writings
        for row, wording in enumerate(WORDINGS)
        if not (in_capitals and wording.source == "report")
        for match in wording.matches(flat_text, in_capitals=in_capitals)
    ]
    found = sorted(matches, key=lambda one: (*one[:2], -one[2].end()))
    kept: list[Statement] = []
    for start, row, match in found:
        if not kept or start >= kept[-1].end:
            kept.append(Statement(start, match.end(), row, match))
        elif row < kept[-1].row:
            kept[-1] = Statement(kept[-1].start, max(match.end(), kept[-1].end), row, match)
    return kept


def _oom_start(flat_text: str, group: list[Statement], previous_end: int) -> int:
    """Where the text of an OOM begins; the entry of a list is known by one of its later words."""
    start = group[0].start
    if group[0].wording.source != "allocation_entry":
        return start
    size = flat_text.rfind(". Size: ", previous_end, start)
    return start if size < 0 else max(previous_end, flat_text.rfind(" ", 0, size) + 1)


def _oom_end(flat_text: str, last_match_end: int, limit: int) -> int:
    """Where the text of an OOM ends, whose last statement ends at last_match_end."""
    limit = min(limit, last_match_end + _REACH)
    traceback = flat_text.find(_TRACEBACK, last_match_end, limit)
    return limit if traceback < 0 else traceback


def _same_oom(
    flat_text: str, statement: Statement, group: list[Statement], last_match_end: int
) -> bool:
    """Whether a statement says more about the OOM of a group that ends at last_match_end."""
    source, gap = statement.wording.source, statement.start - last_match_end
    platforms = {other.wording.implies.platform for other in group}
    if statement.wording.implies.platform not in {*platforms, None} and platforms != {None}:
        return False
    if source == "allocation_entry":
        return gap < _FAR
    if gap >= _FAR:
        return False
    if source == "extra_figures" and (gap >= _NEAR or statement.row in {o.row for o in group}):
        return False
    if source == "report":
        reports = [other for other in group if other.row == statement.row]
        return not reports or reports[0].match.groupdict() == statement.match.groupdict()
    sources = {other.wording.source for other in group} - {"extra_figures"}
    if sources == {"report"}:
        return gap < _NEAR and _agrees(statement, group[-1])
    if sources == {"code"}:
        return gap < _NEAR
    is_logged = sources & _LOGS and sources <= {*_LOGS, "quoted"}
    between = flat_text[last_match_end : statement.start]
    if is_logged and source in {"error", "quoted", *_LOGS}:
        if _OTHER_BLOCK.search(between):
            return _names_same_request(statement, group)
        retries = source == "retry_log" or sources == {"retry_log"}
        return retries or _same_request(statement, group)
    if source in {"error", "code", *_LOGS} or _TRACEBACK in between:
        return _repeats_same_error(flat_text, statement, group, between)
    if source == "quoted":
        return gap < _NEAR
    same_row = [other for other in group if other.row == statement.row]
    # Several processes may write the lines of equal errors to one log in turn.
    is_repeated = gap < _NEAR and any(other.match[0] == statement.match[0] for other in same_row)
    return not same_row or (is_repeated and "error" in sources)


def _repeats_same_error(
    flat_text: str, statement: Statement, group: list[Statement], between: str
) -> bool:
    """Whether a chain of exceptions, or an error that has been logged, prints the text again."""
    same = [other for other in group if other.match[0] == statement.match[0]]
    if not same:
        return False
    was_logged, is_logged = (_is_logged(flat_text, printed) for printed in (same[0], statement))
    # A report of an issue has the error as its title, and then the log.
    is_title = is_logged and not was_logged and len(between) < _TITLE_REACH
    raised = was_logged and not is_logged
    return raised or is_title or any(words in between for words in _CHAINED)


def _is_logged(flat_text: str, statement: Statement) -> bool:
    """Whether an error stands in XLA's log of an execution, which raises it afterwards."""
    before = flat_text[max(0, statement.start - _LOGGED_LENGTH) : statement.start]
    return _LOGGED.search(before) is not None


def _agrees(statement: Statement, report: Statement) -> bool:
    """Whether an error can be the one that a report before it is about."""
    fields, reported = read_figures(statement.match), read_figures(report.match)
    known = [name for name in fields.keys() & reported.keys() if name.endswith("_bytes")]
    return all(
        abs(fields[name] - reported[name]) <= reported["resolution_bytes"].get(name, 0)
        for name in known
        if name != "resolution_bytes"
    )


def _names_same_request(statement: Statement, group: list[Statement]) -> bool:
    """Whether a statement names the size that the logs of a group do."""
    requested = read_figures(statement.match).get("requested_bytes")
    sizes = [read_figures(other.match).get("requested_bytes") for other in group]
    is_named = requested is not None and any(size is not None for size in sizes)
    return is_named and _same_request(statement, group)


def _same_request(statement: Statement, group: list[Statement]) -> bool:
    """Whether a statement can be about the request that the logs of a group name."""
    if statement.match[0] in {other.match[0] for other in group}:
        return True
    fields = read_figures(statement.match)
    for other in group:
        more = read_figures(other.match)
        sizes = (fields.get("requested_bytes"), more.get("requested_bytes"))
        resolution = max(f["resolution_bytes"].get("requested_bytes", 0) for f in (fields, more))
        is_known = other.wording.source == "log" and sizes[1] is not None
        if is_known and sizes[0] is not None:
            if abs(sizes[0] - sizes[1]) > max(resolution, _ROUNDING):
                return False
    return True
