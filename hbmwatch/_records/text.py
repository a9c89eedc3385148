"""Text that every room prints alike: foreign text made safe, columns, the rows of buffers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp

WIDTH = 99
_SPACES = {"hbm": "HBM", "vmem": "VMEM", "smem": "SMEM", "cmem": "CMEM", "host": "host memory"}
_KINDS = {"parameter": "argument"}
_PLURALS = {
    "parameter": "arguments",
    "output": "outputs",
    "temporary": "temporaries",
    "constant": "constants",
    "thread-local": "thread-local",
    "": "other",
}
_OUTER_JIT = re.compile(r"^jit\([^()/]*\)/(?:jit\(main\)/)?")
_NUMBER = re.compile(r"\d+")
_LAYOUT = re.compile(r"\{[^{}]*\}")


def clean(text: str, width: int = WIDTH) -> str:
    """Foreign text made harmless and short: no control, escape or bidirectional characters."""
    cut = text if len(text) <= 2 * width else text[:width] + text[-width:]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
    if len(shown) <= width:
        return shown
    head = (width - 1) // 3
    return f"{shown[:head]}\N{HORIZONTAL ELLIPSIS}{shown[-(width - 1 - head) :]}"


def memory_space_name(memory_space: str) -> str:
    """A memory space as people write it: "HBM", "host memory"."""
    return _SPACES.get(memory_space, clean(memory_space, 20))


def unnumbered(name: str) -> str:
    """A name with "*" for each of its numbers, so that layers have one name."""
    return _NUMBER.sub("*", name)


def packed(items: Iterable[str], indent: int) -> list[str]:
    """Items side by side, on as few lines as hold them whole."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= WIDTH:
            lines[-1] += f"   {item}"
        else:
            lines.append(" " * indent + item)
    return lines


def by_kind(ops: Sequence[PeakOp]) -> list[str]:
    """What is live at the peak, by allocation type, and how much of it is padding."""
    totals: dict[str, int] = {}
    for op in ops:
        name = _PLURALS[op.kind] if op.instruction else "small buffers"
        totals[name] = totals.get(name, 0) + op.size_bytes
    totals = dict(sorted(totals.items(), key=lambda item: -item[1]))
    totals["padding"] = sum(op.padding_bytes for op in ops if op.instruction)
    return [f"{name} {format_size(total)}" for name, total in totals.items()]


def buffer_rows(groups: Sequence[tuple[int, PeakOp]], top: int) -> list[str]:
    """One line for each group of equal buffers, in columns."""
    shown = groups[:top]
    counts = [f"{count} x" if count > 1 else "" for count, _ in shown]
    cells = [
        (
            count,
            format_size(op.size_bytes),
            clean(shape_text(op), 26),
            _KINDS.get(op.kind, op.kind),
            *made_by(op, number > 1),
        )
        for count, (number, op) in zip(counts, shown, strict=True)
    ]
    lines = [f"    {line}" for line in columns(cells, (0, 1), 4, WIDTH - 4)]
    rest = groups[top:]
    if rest:
        size = format_size(sum(count * op.size_bytes for count, op in rest))
        lines += [f"    and {sum(count for count, _ in rest)} more, {size} together"]
    return lines


def shape_text(op: PeakOp) -> str:
    """The shape without its layout."""
    return _LAYOUT.sub("", op.shape)


def made_by(op: PeakOp, several: bool) -> tuple[str, str]:
    """What made the buffer, and on which line; several arguments differ in their numbers."""
    if not op.instruction:
        return "all buffers below 16 KiB", ""
    path = _NUMBER.sub("*", op.path) if op.path and several else op.path
    name = path or _OUTER_JIT.sub("", op.op_name) or op.instruction
    padded = f" [{op.expansion:.1f}x padded]" if op.expansion >= 1.2 else ""
    return clean(name, 34 - len(padded)) + padded, clean(op.source, 24)


def columns(
    cells: Sequence[tuple[str, ...]], right: tuple[int, ...], elastic: int, most: int
) -> list[str]:
    """Rows of text in aligned columns.

    Args:
        cells: The rows, of equal length.
        right: The columns that end flush.
        elastic: The column that is cut where a row would be too long.
        most: How long a row may be.
    """
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    excess = sum(widths) + 2 * (sum(map(bool, widths)) - 1) - most
    widths[elastic] = min(widths[elastic], max(widths[elastic] - excess, 8))
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if n in right else clean(cell, width).ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        )
        lines.append("  ".join(padded).rstrip())
    return lines
