"""Finds the OOMs in a log of any length, which is read in blocks.

A block is searched for texts that every message has. Only what is near one of them is decoded and
read as parse_ooms reads a text, so that the time grows with the log and the memory does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hbmwatch._messages.parse import Located, locate_ooms
from hbmwatch._messages.table import TRIGGERS

# A log of at most this many bytes is read whole.
_SHORT = 1 << 20
# How many bytes are read before the first trigger of a part, and after its last one.
_BEFORE, _AFTER = 1 << 14, 1 << 17
# A longer part is read piece by piece.
_LONGEST_PART = 1 << 22
_LONGEST_TRIGGER = max(map(len, TRIGGERS))
# The BFC allocator lists each of its chunks when it fails, between the lines that count.
_CHUNK = re.compile(
    rb"^[^\n]{0,200}?(?:InUse|Free ?) at [0-9a-f]{1,16} of size \d{1,20} next \d{1,20}\r?$",
    re.MULTILINE,
)


def find_in_log(blocks: Iterable[bytes]) -> Iterator[Located]:
    """The OOMs of a log, in order, with the numbers of their lines.

    Args:
        blocks: The log in UTF-8, in blocks of any size; best some hundred kilobytes.
    """
    reader = _Reader()
    for block in blocks:
        yield from reader.add(block)
    yield from reader.finish()


class _Reader:
    """A log that is read in blocks: the bytes that are still needed, and where triggers are."""

    def __init__(self) -> None:
        self._data = b""
        self._line = 1  # on which the data begin
        self._searched = 0  # how many bytes of the data
        self._first: int | None = None  # where the first trigger begins
        self._last = 0  # where the last one ends
        self._is_short = True  # as far as is known

    def add(self, block: bytes) -> list[Located]:
        """Add a block of the log; the OOMs that are complete with it."""
        self._data += block
        if self._is_short and len(self._data) <= _SHORT:
            return []
        self._is_short = False
        self._search()
        if self._first is None:
            self._drop(len(self._data) - _BEFORE)
        elif len(self._data) - self._last > _AFTER:
            found = self._located(self._last + _AFTER)
            self._drop(self._last + _AFTER)
            return found
        elif len(self._data) > _LONGEST_PART:
            return self._all_but_the_last()
        return []

    def finish(self) -> list[Located]:
        """The OOMs in the rest of the log."""
        if self._is_short:
            return self._located(len(self._data))
        self._search()
        return [] if self._first is None else self._located(len(self._data))

    def _search(self) -> None:
        """Search what was added for triggers."""
        start = max(0, self._searched - _LONGEST_TRIGGER)
        added = self._data[start:].replace(b"\n", b" ")  # a line may have been broken in a trigger
        found = [trigger for trigger in TRIGGERS if trigger in added]
        if (found or self._first is not None) and b"InUse at " in added:
            without_chunks = _CHUNK.sub(b"", self._data[start:])
            self._data = self._data[:start] + without_chunks
            added = without_chunks.replace(b"\n", b" ")
        if found:
            if self._first is None:
                self._first = start + min(map(added.find, found))
            self._last = start + max(added.rfind(trigger) + len(trigger) for trigger in found)
        self._searched = len(self._data)

    def _located(self, end: int) -> list[Located]:
        """The OOMs in the data up to a place, from shortly before the first trigger on."""
        begin = max(0, (self._first or 0) - _BEFORE)
        text = self._data[begin:end].decode("utf-8", "replace")
        before = self._line - 1 + self._data.count(b"\n", 0, begin)
        return [Located(before + line, message) for line, message in locate_ooms(text)]

    def _all_but_the_last(self) -> list[Located]:
        """The OOMs in the data; the last one may go on, so it stays, unless it is very long."""
        found = self._located(len(self._data))
        kept = self._place(found[-1].line) if found else 0
        if kept < len(self._data) // 2:
            self._drop(len(self._data) - _BEFORE)
            return found
        self._drop(kept)
        self._first, self._last = 0, len(self._data)
        return found[:-1]

    def _place(self, line: int) -> int:
        """Where a line of the log begins in the data."""
        place = 0
        for _ in range(line - self._line):
            place = self._data.find(b"\n", place) + 1
        return place

    def _drop(self, count: int) -> None:
        """Forget the first bytes, and the triggers."""
        count = max(0, count)
        self._line += self._data.count(b"\n", 0, count)
        self._data = self._data[count:]
        self._searched = len(self._data)
        self._first = None
