"""Shard arguments, and the outputs that replace them, over the axes that do not shard them yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, Leaf, NothingToChange, names
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.state import state_of

# Smaller arrays are not worth the communication.
_LARGE_BYTES = 1 << 16
_VALUES = "the same values up to rounding: sums over several devices add up in another order"

Axes = str | tuple[str, ...] | None
Placement = tuple[int, tuple[Axes, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Edit):
    """Arguments with the entries of their new PartitionSpecs."""

    placements: tuple[Placement, ...]

    def on(self, call: Call) -> Call:
        """The call with these arguments sharded, and with them the outputs that replace them."""
        if call.mesh is None:
            raise NothingToChange("no argument is on a mesh of several devices")
        arguments, outputs, pairs = {}, {}, call.updated()
        for i, entries in self.placements:
            sharding = NamedSharding(call.mesh, PartitionSpec(*entries))
            arguments[i] = call.arguments[i].at(sharding)
            if i in pairs:
                outputs[pairs[i]] = call.outputs[pairs[i]].at(sharding)
        return call.with_arguments(arguments).with_outputs(outputs)


def _arguments(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    chosen = asked.chosen(call) if asked.paths else range(len(call.arguments))
    yield from _over_free_axes(call, chosen, asked.axis)


def _state(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    state = state_of(call)
    if call.mesh is not None and not state:
        raise NothingToChange("no argument is known to be optimizer state")
    yield from _over_free_axes(call, state, asked.axis)


def _over_free_axes(call: Call, among: Collection[int], axis: str | None) -> Edits:
    """One edit for each way to choose the dimension that is cut."""
    mesh = call.mesh
    if mesh is None or (axis is not None and axis not in mesh.shape):
        named = "of several devices" if axis is None else f"with an axis named {axis!r}"
        raise NothingToChange(f"no argument is on a mesh {named}")
    seen: set[tuple[Placement, ...]] = set()
    for choose in (_largest, _first, _last):
        placements = tuple(_placements(call, among, axis, choose))
        if placements and placements not in seen:
            seen.add(placements)
            yield _edit(call, placements)
    if not seen:
        over = repr(axis) if axis is not None else "the free axes of the mesh"
        raise NothingToChange(f"no argument has a dimension that {over} divides")


def _edit(call: Call, placements: tuple[Placement, ...]) -> Edit:
    moved = [call.arguments[i] for i, _ in placements]
    axes = dict.fromkeys(
        name
        for i, entries in placements
        for name in _names_in(entries)
        if name not in _names_in(_entries(call.arguments[i]))
    )
    path, entries = moved[0].name, ", ".join(map(repr, placements[0][1]))
    more = f", likewise {len(moved) - 1} more" if len(moved) > 1 else ""
    return Shard(
        what=f"sharding {names(moved)} over {', '.join(map(repr, axes))}",
        code=f"place {path} by NamedSharding(mesh, PartitionSpec({entries})){more}, "
        "and set the same in out_shardings for the outputs that replace them",
        placements=placements,
    )


def _placements(
    call: Call, among: Collection[int], axis: str | None, choose: Callable[[list[int], Leaf], int]
) -> Iterator[Placement]:
    for i in sorted(among):
        leaf = call.arguments[i]
        if leaf.nbytes < _LARGE_BYTES or not isinstance(leaf.sharding, NamedSharding):
            continue
        entries = _entries(leaf)
        free = tuple(name for name in call.mesh.axis_names if name not in _names_in(entries))
        free = tuple(name for name in free if call.mesh.shape[name] > 1 and axis in (None, name))
        parts = math.prod(call.mesh.shape[name] for name in free)
        whole = [
            d
            for d, length in enumerate(leaf.shape.shape)
            if entries[d] is None and length >= parts and length % parts == 0
        ]
        if free and whole:
            entries[choose(whole, leaf)] = free if len(free) > 1 else free[0]
            yield i, tuple(entries)


def _largest(dimensions: list[int], leaf: Leaf) -> int:
    return max(dimensions, key=lambda d: leaf.shape.shape[d])


def _first(dimensions: list[int], leaf: Leaf) -> int:
    return dimensions[0]


def _last(dimensions: list[int], leaf: Leaf) -> int:
    return dimensions[-1]


def _entries(leaf: Leaf) -> list[Any]:
    """The entries of the argument's PartitionSpec, one for each dimension."""
    given = tuple(leaf.sharding.spec)
    return [*given, *[None] * (len(leaf.shape.shape) - len(given))]


def _names_in(entries: Collection[Any]) -> set[str]:
    """The axes that a PartitionSpec names."""
    found: set[str] = set()
    for entry in entries:
        found |= {entry} if isinstance(entry, str) else set(entry or ())
    return found


STATE_SHARDING = Change("state-sharding", "A", _VALUES, _state)
SHARDING = Change("sharding", "A", _VALUES, _arguments)
