"""What changed from one memory peak to another, by the code that created the buffers.

Every compile renames and renumbers instructions. Buffers of two programs therefore correspond if
they have the same kind, the same op_name apart from its numbers, and the same source line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hbmwatch._records.sizes import format_change, format_size
from hbmwatch._records.text import (
    SMALL_BUFFERS,
    clean,
    kind_name,
    unnumbered,
    without_layout,
    without_outer_jit,
)
from hbmwatch._report.json import SCHEMA, plain

if TYPE_CHECKING:
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.peak_op import PeakOp

_RENAMED = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+(?=$|\{)")
_TOTALS = {
    "arguments": "parameter_bytes",
    "aliased with outputs": "aliased_bytes",
    "outputs": "output_bytes",
    "temporaries": "temporary_bytes",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Buffers of one origin in one of the two programs.

    Attributes:
        count: How many buffers.
        size_bytes: Bytes of all of them.
        largest_bytes: Bytes of the largest.
        shape: The shape of the largest, without its layout; "" where there is none.
    """

    count: int = 0
    size_bytes: int = 0
    largest_bytes: int = 0
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Buffers of one origin whose bytes or shape changed.

    Attributes:
        kind: "parameter", "output", "temporary", "constant", "thread-local", or "" for the small
            buffers of all kinds.
        name: The op_name without the outermost jit, or the argument's path; "*" stands for numbers.
        source: The source line that created them ("train.py:88"), of the second program.
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
        """By how much they grew; negative if they shrank."""
        return self.after.size_bytes - self.before.size_bytes


def changes(before: PeakSummary, after: PeakSummary) -> tuple[Change, ...]:
    """The buffers at the peak that differ, the largest changes first.

    Two more rules match origins that only one of the programs has, if the match is unique: the same
    op_name on another line of the same file (the file was edited), and equal buffers of the same
    line with another op_name (jax.checkpoint renames buffers that it leaves unchanged).
    """
    old, new = _groups(before.ops), _groups(after.ops)
    for place in (_on_another_line, _of_another_name):
        for key, same in _pairs(place, old, new).items():
            old[same] = old.pop(key)
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
    return {key: _group(same) for key, same in grouped.items()}


def _group(ops: Sequence[PeakOp]) -> Group:
    largest = max(ops, key=lambda op: op.size_bytes)
    total = sum(op.size_bytes for op in ops)
    return Group(len(ops), total, largest.size_bytes, without_layout(largest.shape))


def _name(op: PeakOp) -> str:
    """The name of a buffer without the parts that a new compile changes."""
    if not op.instruction:
        return SMALL_BUFFERS
    if op.op_name:
        return unnumbered(without_outer_jit(op.op_name))
    return _RENAMED.sub("", op.instruction)


def _on_another_line(key: _Key, group: Group) -> tuple[object, ...]:
    kind, name, source = key
    return kind, name, source.rpartition(":")[0]


def _of_another_name(key: _Key, group: Group) -> tuple[object, ...]:
    kind, _, source = key
    return kind, source, group


def _pairs(
    place: Callable[[_Key, Group], tuple[object, ...]],
    old: Mapping[_Key, Group],
    new: Mapping[_Key, Group],
) -> dict[_Key, _Key]:
    """Origins that only one program has, matched if each program has exactly one in a place."""
    places: dict[tuple[object, ...], tuple[list[_Key], list[_Key]]] = {}
    for side, groups, others in ((0, old, new), (1, new, old)):
        for key, group in groups.items():
            if key not in others:
                places.setdefault(place(key, group), ([], []))[side].append(key)
    alone = (pair for pair in places.values() if len(pair[0]) == len(pair[1]) == 1)
    return {gone[0]: come[0] for gone, come in alone}


# --- as text and JSON -----------------------------------------------------------------------------


def diff_text(
    before: PeakSummary, after: PeakSummary, top: int, limit_bytes: int | None = None
) -> str:
    """The changes as a table.

    Args:
        before: The first peak.
        after: The second one.
        top: The number of changes to show.
        limit_bytes: The memory for one program, where a report says it.
    """
    module = after.module if after.module == before.module else f"{before.module}, {after.module}"
    grown = format_change(after.peak_bytes - before.peak_bytes)
    head = (
        f"Peak of {clean(module, 60)}: {format_size(before.peak_bytes)} -> "
        f"{format_size(after.peak_bytes)} ({grown})"
    )
    if limit_bytes is not None:
        head += f"\n  {_verdict(before, after, limit_bytes)}"
    found = changes(before, after)
    if not found:
        return f"{head}\n  no changes"
    rows = [_row(change) for change in found[:top]]
    lines = [head, *_totals(before, after), "  Changes at the peak", *_table(rows)]
    rest = found[top:]
    if rest:
        size = format_change(sum(change.delta_bytes for change in rest))
        lines.append(f"    and {len(rest)} more ({size})")
    return "\n".join(lines)


def _verdict(before: PeakSummary, after: PeakSummary, limit_bytes: int) -> str:
    """Whether the change is enough for the limit, and what remains if not."""
    needed = before.total_allocation_bytes - limit_bytes
    freed = before.total_allocation_bytes - after.total_allocation_bytes
    left = limit_bytes - after.total_allocation_bytes
    limit = f"the limit of {format_size(limit_bytes)}"
    if needed <= 0:
        fits = "fits" if left >= 0 else f"is {format_size(-left)} above it"
        return f"The first program is below {limit}, and the second {fits}."
    told = f"{format_size(needed)} was above {limit}; the change frees {format_size(freed)}: "
    return f"{told}enough." if left >= 0 else f"{told}{format_size(-left)} remains."


def _totals(before: PeakSummary, after: PeakSummary) -> list[str]:
    """The totals that changed."""
    lines = []
    for name, field in _TOTALS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            sizes = f"{format_size(old)} -> {format_size(new)}"
            lines.append(f"  {name}: {sizes} ({format_change(new - old)})")
    return lines


def _row(change: Change) -> tuple[str, ...]:
    return (
        format_change(change.delta_bytes),
        f"{_count(change.before)} -> {_count(change.after)}",
        kind_name(change.kind),
        clean(change.name, 34),
        clean(change.source, 24),
        clean(_shapes(change), 46),
    )


def _count(group: Group) -> str:
    if not group.count:
        return "none"
    if group.largest_bytes * group.count != group.size_bytes:
        return f"{format_size(group.size_bytes)} in {group.count}"
    number = f"{group.count} x " if group.count > 1 else ""
    return f"{number}{format_size(group.largest_bytes)}"


def _shapes(change: Change) -> str:
    old, new = change.before.shape, change.after.shape
    if not old or not new:
        return f"{new}, new" if new else f"{old}, gone" if old else ""
    return new if old == new else f"{old} -> {new}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Two lines for each change: by how much, then the buffers before and after."""
    width = max(len(row[0]) for row in rows)
    kinds = max(len(row[2]) for row in rows)
    lines = []
    for delta, counts, kind, name, source, shapes in rows:
        lines.append(f"    {delta:>{width}}  {kind:<{kinds}}  {name}  {source}".rstrip())
        lines.append(f"    {'':>{width}}  {'':<{kinds}}  {counts}  {shapes}".rstrip())
    return lines


def diff_dict(before: PeakSummary, after: PeakSummary) -> dict[str, Any]:
    """The changes as JSON-able values, with the schema version of reports."""
    return {
        "schema": SCHEMA,
        "before": _side(before),
        "after": _side(after),
        "changes": [
            {**plain(change), "delta_bytes": change.delta_bytes}
            for change in changes(before, after)
        ],
    }


def _side(summary: PeakSummary) -> dict[str, Any]:
    names = ("module", "memory_space", "peak_bytes", *_TOTALS.values())
    return {name: getattr(summary, name) for name in names}
