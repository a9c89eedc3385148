"""Reshapes: a piece survives where the new shape holds the same elements in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot
from hbmwatch._preflight.pieces.split import Grid, Piece, Split, reshaped


def place(node: Node, grid: Grid, slot: Slot, split: Split) -> Placement | str:
    """The split of the other side of a reshape."""
    if node.params.get("dimensions") is not None or len(node.inputs) != 1:
        return "the reshape also transposes"
    before, after = node.shapes[0], node.outputs[0].shape
    shapes = (after, before) if slot.output else (before, after)
    other = reshaped(grid.units, shapes[0], split, shapes[1])
    if other is None:
        return f"the reshape from {list(before)} to {list(after)} mixes the pieces"
    inside, outside = (other, split) if slot.output else (split, other)

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        return [lax.reshape(values[0], piece.local(after, outside))]

    return Placement((inside,), (outside,), run)
