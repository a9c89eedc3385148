"""What is raised for a file that has sizes but no program, with its rows."""

from __future__ import annotations

from typing import NamedTuple

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import clean

_LONGEST = 70


class Row(NamedTuple):
    """Some of the memory.

    Attributes:
        size_bytes: Its size.
        pieces: How many buffers have that size together; None if unknown.
        what: What it is.
    """

    size_bytes: int
    pieces: int | None
    what: str


class Listing(ProfileError):
    """The file holds no program, so it has no peak; this is what it does hold.

    Attributes:
        rows: The memory in it, most bytes first.
    """

    rows: tuple[Row, ...] = ()

    @classmethod
    def of(cls, text: str, path: str, rows: list[Row]) -> Listing:
        """A listing: what it is, where, and its rows in any order."""
        listing = cls(text, path)
        listing.rows = tuple(sorted(rows, key=lambda row: -row.size_bytes))
        return listing

    def text(self, top: int) -> str:
        """The largest rows as a table."""
        shown = [
            (
                format_size(row.size_bytes),
                "" if row.pieces is None else f"{row.pieces} x",
                clean(row.what, _LONGEST),
            )
            for row in self.rows[:top]
        ]
        left = len(self.rows) - len(shown)
        sizes = max((len(size) for size, _, _ in shown), default=0)
        counts = max((len(count) for _, count, _ in shown), default=0)
        gap = "  " if counts else ""
        lines = [f"  {size:>{sizes}}  {count:>{counts}}{gap}{what}" for size, count, what in shown]
        more = (
            [f"  and {left} more row{'' if left == 1 else 's'}; --top shows more"]
            if left > 0
            else []
        )
        return "\n".join([*lines, *more])
