"""Equations that change no value: barriers and sharding constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Piece, Split, State


def place_barrier(
    node: Node, grid: Grid, slot: Slot, split: Split, have: Sequence[State]
) -> Placement | str:
    """A barrier keeps each of its values as it is."""
    states: list[State] = [s if isinstance(s, Split) else WHOLE for s in have]
    states[slot.position] = split
    return _unchanged(node, states)


def place_constraint(node: Node, grid: Grid, slot: Slot, split: Split) -> Placement | str:
    """A constraint also holds of a piece where the devices divide the piece evenly."""
    sharding, shape = node.params["sharding"], node.shapes[0]
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return "the sharding names no dimensions"
    for count in grid.counts():
        local = Piece(grid, 0, count).local(shape, split)
        try:
            sharding.shard_shape(local)
        except ValueError:
            return f"the devices do not divide a piece of {list(local)}"
    return _unchanged(node, [split])


def _unchanged(node: Node, states: Sequence[State]) -> Placement:
    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        return replay.bind(node.equation, values, {}, node.callers)

    return Placement(tuple(states), tuple(states), run)
