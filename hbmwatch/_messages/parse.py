"""Is this text a device-memory OOM, and what does it say?

`log_text` removes colors, prefixes of lines and escapes, and turns every run of white space into
one space, which also mends phrases that break over lines. `statements` finds the wordings of the
tables in this flat text and groups them by OOM, and `build` reads the figures of each group. All
steps take time in proportion to the text.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._messages.build import build_message
from hbmwatch._messages.log_text import (
    collapse_whitespace,
    join_broken_words,
    strip_log_decoration,
)
from hbmwatch._messages.statements import Oom, find_ooms
from hbmwatch._messages.table import HINTS
from hbmwatch._records.message import OomMessage

# A shorter text is read whole.
_SHORT = 1 << 16
# A longer text is not searched for words that a terminal broke.
_LONGEST_JOINED = 1 << 18
# How much of a longer text is read before its first hint, and after its last one.
_BEFORE_HINT, _AFTER_HINT = 2000, 1 << 16
# Stands before a line break that the text does not have as such.
_MARK = "\v"


class _Read(NamedTuple):
    """A text that was read.

    Attributes:
        plain_text: Without log decoration.
        flat_text: The same, each run of white space as one space.
        ooms: The OOMs in it.
        lines: The plain text if its lines are those of the given text; else the text that has them.
        joined: The numbers of the lines that another line of the given text has been added to.
    """

    plain_text: str
    flat_text: str
    ooms: list[Oom]
    lines: str
    joined: Sequence[int] = ()


class Located(NamedTuple):
    """An OOM of a log.

    Attributes:
        line: The number of its line in the text; the first line has number 1.
        message: What it says, with the lines that it was read from as its text.
    """

    line: int
    message: OomMessage


def parse_oom(text: str) -> OomMessage | None:
    """The first device-memory OOM in a text, or None.

    It reads the messages of XLA's compilers, runtimes and allocators, and of the CUDA and ROCm
    libraries that they use. It returns None for a text that only mentions memory, for a limit of
    one GPU kernel, for a warning that says that it is no failure, and for PyTorch's own "CUDA out
    of memory". An on-chip memory space that ran out (vmem, smem, ...) is an OOM of that space.

    Args:
        text: An exception's text, a traceback or a log, with or without what a logger or a
            terminal adds. It is returned unchanged as the message's text.
    """
    read = _read(_relevant_part(text))
    return build_message(text, read.flat_text, read.ooms[0]) if read.ooms else None


def parse_ooms(text: str) -> tuple[OomMessage, ...]:
    """All device-memory OOMs in a text, in order.

    If there is one, its text is the given text. If there are several, the text of each is the
    part that it was read from, without colors and without what a log puts before each line.
    """
    read = _read(_relevant_part(text))
    if len(read.ooms) == 1:
        return (build_message(text, read.flat_text, read.ooms[0]),)
    return tuple(located.message for located in _located(read))


def locate_ooms(text: str) -> list[Located]:
    """All device-memory OOMs in a part of a log, in order, with the lines where they begin."""
    return _located(_read(text))


def _read(text: str) -> _Read:
    """What a text says; with the words whole that a terminal broke, if it says more then."""
    read = _read_lines(text)
    if len(text) < _LONGEST_JOINED:
        joined_text, joined = join_broken_words(text)
        if joined:
            joined_read = _read_lines(joined_text)
            if _what_is_stated(joined_read) > _what_is_stated(read):
                return joined_read._replace(joined=joined)
    return read


def _what_is_stated(read: _Read) -> int:
    """How many figures were found: a broken number can make two OOMs of one."""
    matches = [statement.match for oom in read.ooms for statement in oom.statements]
    return sum(group is not None for match in matches for group in match.groups())


def _read_lines(text: str) -> _Read:
    """The text without log decoration, the same as flat text, and the OOMs in it."""
    plain_text = strip_log_decoration(text, _MARK)
    flat_text = collapse_whitespace(plain_text)
    ooms = list(find_ooms(flat_text))
    if not ooms and len(plain_text) < _SHORT:
        # A terminal breaks lines within words too, and one full line does not tell its width.
        lines = plain_text.replace(_MARK, "")
        joined = lines.replace("\n", "")
        flat_joined = collapse_whitespace(joined)
        return _Read(joined, flat_joined, list(find_ooms(flat_joined)), lines)
    return _Read(plain_text, flat_text, ooms, plain_text)


def _relevant_part(text: str) -> str:
    """The part of a long text that can be about memory; most of a log is not."""
    if len(text) < _SHORT:
        return text
    places = [place for word in HINTS if (place := text.find(word)) >= 0]
    if not places:
        return ""
    last = max(text.rfind(word) for word in HINTS)
    return text[max(0, min(places) - _BEFORE_HINT) : last + _AFTER_HINT]


def _located(read: _Read) -> list[Located]:
    """The OOMs with their lines, and with the lines of the plain text that are about each."""
    starts, parts = _split_text(read)
    lines = [n + bisect.bisect_left(read.joined, n) for n in _line_numbers(read, starts)]
    return [
        Located(line, build_message(part.replace(_MARK, ""), read.flat_text, oom))
        for line, part, oom in zip(lines, parts, read.ooms, strict=True)
    ]


def _line_numbers(read: _Read, starts: Sequence[int]) -> list[int]:
    """The lines of the given text on which places of the plain text are."""
    if read.lines is not read.plain_text:
        # Without the line breaks, both have the same characters.
        breaks = [m.start() - n for n, m in enumerate(re.finditer("\n", read.lines))]
        return [1 + sum(place <= start for place in breaks) for start in starts]
    numbers, line, position = [], 1, 0
    for start in starts:
        line += read.lines.count("\n", position, start)
        line -= read.lines.count(f"{_MARK}\n", position, start)
        numbers.append(line)
        position = start
    return numbers


def _split_text(read: _Read) -> tuple[list[int], list[str]]:
    """Where each OOM begins in the plain text, and its lines. The flat text has the same words."""
    plain_text, flat_text = read.plain_text, read.flat_text
    edges = []
    position = words = 0
    for oom in read.ooms:
        words += flat_text.count(" ", position, oom.start)
        position = oom.start
        ends = (oom.stated_end, oom.end)
        stated, last = (words + flat_text[oom.start : end].rstrip().count(" ") for end in ends)
        edges.append((words, stated, last))
    needed = {word for edge in edges for word in edge}
    found = enumerate(re.finditer(r"\S+", plain_text)) if needed else ()
    spans = {word: match.span() for word, match in found if word in needed}
    first_words = [spans[first][0] for first, _, _ in edges]
    starts = [plain_text.rfind("\n", 0, place) + 1 for place in first_words]
    next_starts = [*starts, len(plain_text)][1:]
    parts, end = [], 0
    for (_, stated, last), line_start, next_start in zip(edges, starts, next_starts, strict=True):
        start = max(end, line_start)
        # The beginning of the next OOM's line belongs to that one.
        end = max(spans[stated][1], min(spans[last][1], next_start))
        parts.append(plain_text[start:end].strip())
    return first_words, parts
