"""What changed from one memory peak to another, by the code that created the buffers.

Every compile renames and renumbers instructions. Buffers of two programs therefore correspond if
they have the same kind, the same op_name apart from its numbers, and the same source line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbmwatch._records.paths import path_keys
from hbmwatch._records.roles import role_of
from hbmwatch._records.text import (
    SMALL_BUFFERS,
    named_blocks,
    unnumbered,
    without_layout,
    without_outer_jit,
)

if TYPE_CHECKING:
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.peak_op import PeakOp

_RENAMED = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+(?=$|\{)")
# What a change can be grouped by, and what that is called.
GROUPINGS = {
    "origin": "operation and line",
    "role": "role",
    "line": "source line",
    "function": "function",
    "path": "pytree path",
    "shape": "shape",
    "layer": "layer",
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


def changes(
    before: PeakSummary, after: PeakSummary, grouping: str = "origin"
) -> tuple[Change, ...]:
    """The buffers at the peak that differ, the largest changes first.

    Args:
        before: The first peak.
        after: The second one.
        grouping: What makes buffers one group, a key of GROUPINGS.

    Two more rules match origins that only one of the programs has, if the match is unique: the same
    op_name on another line of the same file (the file was edited), and equal buffers of the same
    line with another op_name (jax.checkpoint renames buffers that it leaves unchanged).
    """
    old, new = _by_origin(before.ops), _by_origin(after.ops)
    for place in (_on_another_line, _of_another_name):
        for key, same in _pairs(place, old, new).items():
            old[same] = old.pop(key)
    if grouping != "origin":
        old, new = _regrouped(grouping, old), _regrouped(grouping, new)
    found = (
        Change(*key, before=_group(old.get(key, ())), after=_group(new.get(key, ())))
        for key in dict.fromkeys((*new, *old))
    )
    changed = [change for change in found if change.before != change.after]
    return tuple(sorted(changed, key=lambda change: -abs(change.delta_bytes)))


_Key = tuple[str, str, str]
_Buffers = dict[_Key, list["PeakOp"]]


def _by_origin(ops: Iterable[PeakOp]) -> _Buffers:
    grouped: _Buffers = {}
    for op in ops:
        grouped.setdefault((op.kind, _name(op), op.source), []).append(op)
    return grouped


def _regrouped(grouping: str, by_origin: _Buffers) -> _Buffers:
    """The buffers in other groups; those of a line that moved are at the line of their origin."""
    grouped: _Buffers = {}
    for (_, _, source), ops in by_origin.items():
        for op in ops:
            name = source or "no source line" if grouping == "line" else _group_name(grouping, op)
            key = ("", name if op.instruction else SMALL_BUFFERS, "")
            grouped.setdefault(key, []).append(op)
    return grouped


def _group_name(grouping: str, op: PeakOp) -> str:
    """What a buffer has in common with others."""
    if grouping == "role":
        return role_of(op)
    if grouping == "shape":
        return without_layout(op.shape) or "no shape"
    if grouping == "path":
        return "not an argument" if op.path is None else unnumbered(op.path)
    if grouping == "layer":
        return unnumbered(_layer(op)) or "not in a named block"
    return next(filter(None, op.functions), "no function")


def _layer(op: PeakOp) -> str:
    """The named blocks that a buffer is in; of an argument, its path without the last key."""
    if op.path is not None:
        return "".join(path_keys(op.path)[:-1])
    return "/".join(named_blocks(op.shown_name))


def _group(ops: Sequence[PeakOp]) -> Group:
    if not ops:
        return Group()
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


def _on_another_line(key: _Key, ops: Sequence[PeakOp]) -> tuple[object, ...]:
    kind, name, source = key
    return kind, name, source.rpartition(":")[0]


def _of_another_name(key: _Key, ops: Sequence[PeakOp]) -> tuple[object, ...]:
    kind, _, source = key
    return kind, source, _group(ops)


def _pairs(
    place: Callable[[_Key, Sequence[PeakOp]], tuple[object, ...]], old: _Buffers, new: _Buffers
) -> dict[_Key, _Key]:
    """Origins that only one program has, matched if each program has exactly one in a place."""
    places: dict[tuple[object, ...], tuple[list[_Key], list[_Key]]] = {}
    for side, groups, others in ((0, old, new), (1, new, old)):
        for key, ops in groups.items():
            if key not in others:
                places.setdefault(place(key, ops), ([], []))[side].append(key)
    alone = (pair for pair in places.values() if len(pair[0]) == len(pair[1]) == 1)
    return {gone[0]: come[0] for gone, come in alone}
