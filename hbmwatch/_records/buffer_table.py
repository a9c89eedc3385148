"""The table of the largest buffers, as wide as what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import (
    SMALL_BUFFERS,
    buffer_name,
    clean,
    columns,
    kind_name,
    padded,
    padding_note,
    without_layout,
)

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp

_INDENT = "    "
_BAR = 8
_GAP = 2
# In less room than this, a buffer has two lines.
_ONE_LINE = 80
# The width of shape, name and source at the default width, and what they keep at least.
_SHAPE, _NAME, _SOURCE = 26, 34, 24
_LEAST = 8
_LARGE = 0.1  # of all bytes: such a row stands out


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of a row; `note` follows the name, and neither it nor `kind` is ever shortened."""

    count: str
    size: str
    bar: str
    shape: str
    kind: str
    name: str
    note: str
    source: str
    is_large: bool


def buffer_rows(groups: Sequence[tuple[int, PeakOp]], top: int, look: Look = PLAIN) -> list[str]:
    """A line for each group of equal buffers, in columns; two lines where there is little room."""
    shown, rest = groups[:top], groups[top:]
    total = sum(count * op.size_bytes for count, op in groups) or 1
    rows = [_row(count, op, total, look) for count, op in shown]
    room = look.width - len(_INDENT) - (_BAR + _GAP) * look.bars
    is_wide = room + len(_INDENT) >= _ONE_LINE
    lines = _table(rows, room, look) if is_wide else _pairs(rows, look)
    if rest:
        size = format_size(sum(count * op.size_bytes for count, op in rest))
        lines.append(f"{_INDENT}and {sum(count for count, _ in rest)} more ({size})")
    return lines


def _row(count: int, op: PeakOp, total: int, look: Look) -> _Row:
    part = count * op.size_bytes / total
    return _Row(
        count=f"{count} x" if count > 1 else "",
        size=format_size(op.size_bytes),
        bar=look.bar(part, _BAR),
        shape=without_layout(op.shape),
        kind=kind_name(op.kind),
        name=buffer_name(op, count > 1),
        note=padding_note(op),
        source=op.shown_source if op.instruction else "",
        is_large=part >= _LARGE,
    )


def _table(rows: Sequence[_Row], room: int, look: Look) -> list[str]:
    """One line for each row."""
    counts, sizes, kinds = (_widest(rows, field) for field in ("count", "size", "kind"))
    fixed = sum(width + _GAP for width in (counts, sizes, kinds) if width)
    shape, name, source = _fitted(rows, room, room - fixed)
    lines = []
    for row in rows:
        head = [row.count.rjust(counts), row.size.rjust(sizes), row.bar.ljust(_BAR * look.bars)]
        cells = [padded(clean(row.shape, shape), shape), padded(row.kind, kinds)]
        if row.name == SMALL_BUFFERS and len(SMALL_BUFFERS) > name:
            cells = [SMALL_BUFFERS]  # over the columns of shape and kind, which are empty
        else:
            cells += [padded(_named(row, name), name), clean(row.source, source)]
        lines.append(_line([*head, *cells], row, look))
    return lines


def _fitted(rows: Sequence[_Row], width: int, room: int) -> tuple[int, int, int]:
    """The widths of shape, name and source in this room: the name is the first to give way."""
    extra = width + len(_INDENT) - PLAIN.width
    side = extra // 4 if extra > 0 else extra // 3
    longest_name = max(
        (columns(_named(row, _NAME + max(0, extra // 2))) for row in rows), default=0
    )
    widths = {
        "name": longest_name,
        "shape": min(_widest(rows, "shape"), _SHAPE + side),
        "source": min(_widest(rows, "source"), _SOURCE + side),
    }
    least = {"name": _LEAST + _widest(rows, "note"), "shape": _LEAST, "source": _LEAST}
    excess = sum(width + _GAP for width in widths.values() if width) - _GAP - room
    for column, kept in least.items():
        cut = max(0, min(excess, widths[column] - kept))
        widths[column] -= cut
        excess -= cut
    return widths["shape"], widths["name"], widths["source"]


def _pairs(rows: Sequence[_Row], look: Look) -> list[str]:
    """Two lines for each row: what it is, and below its size which operation and line made it."""
    counts, sizes, kinds = (_widest(rows, field) for field in ("count", "size", "kind"))
    head = counts + _GAP * bool(counts) + sizes
    room = look.width - len(_INDENT) - head - _GAP
    lines = []
    for row in rows:
        if row.name == SMALL_BUFFERS:
            first, second = SMALL_BUFFERS, []
        else:
            first = f"{padded(row.kind, kinds)}  {clean(row.shape, room - kinds - _GAP)}"
            source = min(columns(row.source), room // 2)
            name = _named(row, room - source - _GAP * bool(source))
            second = [row.bar[:head].rjust(head), name, clean(row.source, source)]
        lines.append(_line([row.count.rjust(counts), row.size.rjust(sizes), first], row, look))
        lines += [_line(second, row, look)] if second else []
    return lines


def _widest(rows: Sequence[_Row], field: str) -> int:
    return max((columns(getattr(row, field)) for row in rows), default=0)


def _named(row: _Row, width: int) -> str:
    """The name, shortened, and its note."""
    if row.name == SMALL_BUFFERS:
        return row.name
    return clean(row.name, max(width - columns(row.note), 1)) + row.note


def _line(cells: Sequence[str], row: _Row, look: Look) -> str:
    line = (" " * _GAP).join(cell for cell in cells if cell)
    line = f"{_INDENT}{line}".rstrip()
    return look.strong(line) if row.is_large else line
