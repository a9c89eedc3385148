"""What changed from one memory peak to another: by the code that made the buffers.

Instructions are renamed and renumbered by every compile, so buffers are the same when what made
them is: the kind, the op_name but for its numbers, and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hbmwatch import _render
from hbmwatch._sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records import PeakOp, PeakSummary

_NUMBER = re.compile(r"\d+")
_OUTER_JIT = re.compile(r"^jit\([^()/]*\)/(?:jit\(main\)/)?")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_RENAMED = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+(?=$|\{)")
_TOTALS = {
    "arguments": "parameter_bytes",
    "of them reused by outputs": "aliased_bytes",
    "outputs": "output_bytes",
    "temporaries": "temporary_bytes",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Buffers of one origin in one of the two programs.

    Attributes:
        count: How many buffers.
        size_bytes: Bytes of all of them.
        shape: The shape of the largest, without its layout; "" where there is none.
    """

    count: int = 0
    size_bytes: int = 0
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Buffers of one origin that take other bytes, or have another shape, than before.

    Attributes:
        kind: "parameter", "output", "temporary", "constant", "thread-local", or "" for the small
            buffers of all kinds.
        name: The op_name without the outermost jit, or the argument's path; numbers are "*".
        source: The line that made them ("train.py:88"), of the second program.
        before: The buffers of the first program; count 0 where they are new.
        after: The buffers of the second program; count 0 where they are gone.
    """

    kind: str
    name: str
    source: str
    before: Group
    after: Group

    @property
    def delta_bytes(self) -> int:
        """By how much they grew."""
        return self.after.size_bytes - self.before.size_bytes


def changes(before: PeakSummary, after: PeakSummary) -> tuple[Change, ...]:
    """The buffers at the peak that differ, those that changed most first.

    Buffers on a line that moved are matched with those of the same kind and op_name in the same
    file, where only one line of each program is left over.
    """
    old, new = _groups(before.ops), _groups(after.ops)
    for key, moved in _moved(old.keys() - new.keys(), new.keys() - old.keys()).items():
        old[moved] = old.pop(key)
    found = (
        Change(*key, before=old.get(key, Group()), after=new.get(key, Group()))
        for key in dict.fromkeys((*new, *old))
    )
    changed = [change for change in found if change.before != change.after]
    return tuple(sorted(changed, key=lambda change: -abs(change.delta_bytes)))


_Key = tuple[str, str, str]


def _groups(ops: Iterable[PeakOp]) -> dict[_Key, Group]:
    grouped: dict[_Key, list[PeakOp]] = {}
    for op in ops:
        grouped.setdefault((op.kind, _name(op), op.source), []).append(op)
    return {
        key: Group(
            len(same),
            sum(op.size_bytes for op in same),
            _LAYOUT.sub("", max(same, key=lambda op: op.size_bytes).shape),
        )
        for key, same in grouped.items()
    }


def _name(op: PeakOp) -> str:
    """What made a buffer, in words that a new compile does not change."""
    if not op.instruction:
        return "all buffers below 16 KiB"
    if op.op_name:
        return _NUMBER.sub("*", _OUTER_JIT.sub("", op.op_name))
    return _RENAMED.sub("", op.instruction)


def _moved(gone: set[_Key], new: set[_Key]) -> dict[_Key, _Key]:
    """The groups of the first program that are the second one's on another line of the file."""
    places: dict[_Key, tuple[list[_Key], list[_Key]]] = {}
    for side, keys in enumerate((gone, new)):
        for kind, name, source in keys:
            file = source.rpartition(":")[0]
            places.setdefault((kind, name, file), ([], []))[side].append((kind, name, source))
    pairs = (place for place in places.values() if len(place[0]) == len(place[1]) == 1)
    return {old[0]: renamed[0] for old, renamed in pairs}


# --- how it reads ---------------------------------------------------------------------------------


def diff_text(before: PeakSummary, after: PeakSummary, top: int) -> str:
    """What changed, as a table.

    Args:
        before: The first peak.
        after: The second one.
        top: How many changes are shown.
    """
    module = after.module if after.module == before.module else f"{before.module}, {after.module}"
    grown = _signed(after.peak_bytes - before.peak_bytes)
    head = (
        f"{_render.clean(module, 60)}: {format_size(before.peak_bytes)} -> "
        f"{format_size(after.peak_bytes)} at the peak, {grown}"
    )
    found = changes(before, after)
    if not found:
        return f"{head}\n  the same buffers at the peak"
    rows = [_row(change) for change in found[:top]]
    lines = [head, *_totals(before, after), "  what changed at the peak", *_table(rows)]
    rest = found[top:]
    if rest:
        together = _signed(sum(change.delta_bytes for change in rest))
        lines.append(f"    and {len(rest)} more, {together} together")
    return "\n".join(lines)


def _signed(size_bytes: int) -> str:
    return f"{'+' if size_bytes >= 0 else ''}{format_size(size_bytes)}"


def _totals(before: PeakSummary, after: PeakSummary) -> list[str]:
    """The sums that are not what they were."""
    lines = []
    for name, field in _TOTALS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            sizes = f"{format_size(old)} -> {format_size(new)}"
            lines.append(f"  {name}: {sizes}, {_signed(new - old)}")
    return lines


def _row(change: Change) -> tuple[str, ...]:
    kind = {"parameter": "argument"}.get(change.kind, change.kind)
    return (
        _signed(change.delta_bytes),
        f"{_count(change.before)} -> {_count(change.after)}",
        kind,
        _render.clean(change.name, 34),
        _render.clean(change.source, 24),
        _render.clean(_shapes(change), 46),
    )


def _count(group: Group) -> str:
    if not group.count:
        return "none"
    number = f"{group.count} x " if group.count > 1 else ""
    return f"{number}{format_size(group.size_bytes // group.count)}"


def _shapes(change: Change) -> str:
    old, new = change.before.shape, change.after.shape
    if not old or not new:
        return f"{new}, new" if new else f"{old}, gone" if old else ""
    return new if old == new else f"{old} -> {new}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Two lines for each change: what it comes to, and from what to what."""
    width = max(len(row[0]) for row in rows)
    kinds = max(len(row[2]) for row in rows)
    lines = []
    for delta, counts, kind, name, source, shapes in rows:
        lines.append(f"    {delta:>{width}}  {kind:<{kinds}}  {name}  {source}".rstrip())
        lines.append(f"    {'':>{width}}  {'':<{kinds}}  {counts}  {shapes}".rstrip())
    return lines


def diff_dict(before: PeakSummary, after: PeakSummary) -> dict[str, Any]:
    """What changed, as JSON-able values under the same schema version as a report."""
    return {
        "schema": _render.SCHEMA,
        "before": _side(before),
        "after": _side(after),
        "changes": [
            {**_render.plain(change), "delta_bytes": change.delta_bytes}
            for change in changes(before, after)
        ],
    }


def _side(summary: PeakSummary) -> dict[str, Any]:
    names = ("module", "memory_space", "peak_bytes", *_TOTALS.values())
    return {name: getattr(summary, name) for name in names}
