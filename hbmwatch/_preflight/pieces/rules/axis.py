"""What a rule is: the axes of an equation, along which its pieces are independent or add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.split import (
    WHOLE,
    Grid,
    Partial,
    Piece,
    Refused,
    Shape,
    Split,
    State,
    local_shape,
)

Run = Callable[[Piece, Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the work: where it is in each input and output. None: the value lacks it.

    An output that lacks the axis is partial, and `reduce` says how the parts become one. The inputs
    in `shared` lack it too, and count once, not once a piece.
    """

    ins: tuple[int | None, ...]
    outs: tuple[int | None, ...]
    reduce: str | None = None
    shared: frozenset[int] = frozenset()


Axes = list[Axis]
Params = Callable[[Node, Axis, Sequence[Shape], Sequence[Shape]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Placement:
    """One way to make an equation's outputs in pieces."""

    ins: tuple[State, ...]
    outs: tuple[State, ...]
    run: Run


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output of an equation."""

    output: bool
    position: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a primitive.

    Attributes:
        axes: The axes of an equation. A dimension in none of them cannot be cut.
        params: The parameters that change with the shapes of a piece.
        run: Makes a piece, where it needs to know which piece it is.
    """

    axes: Callable[[Node], Axes]
    params: Params | None = None
    run: Callable[[Node, Split | None, Piece, Sequence[Any]], list[Any]] | None = None


def place(node: Node, rule: Rule, grid: Grid, slot: Slot, split: Split) -> Placement | str:
    """How to make the outputs when one input or output is split; or why there is no way."""
    axis = _axis_at(rule.axes(node), slot, split.dimension)
    if axis is None:
        which = "output" if slot.output else "input"
        return f"dimension {split.dimension} of {which} {slot.position} is not independent"
    pairs = [*zip(node.inputs, axis.ins, strict=True), *zip(node.outputs, axis.outs, strict=True)]
    if not all(d is None or grid.covers(v.shape, split.at(d)) for v, d in pairs):
        return "the sizes along the dimension differ"
    shared = Partial(axis.reduce or "")
    ins: list[State] = [WHOLE if d is None else split.at(d) for d in axis.ins]
    for position in axis.shared:
        ins[position] = shared
    outs: list[State] = [shared if d is None else split.at(d) for d in axis.outs]
    if shared in outs and axis.reduce is None:
        return "an output lacks the dimension"

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        if rule.run is not None:
            made = next((s for s in outs if isinstance(s, Split)), None)
            return rule.run(node, made, piece, values)
        changes = changed(node, axis, rule.params, piece.count, ins, outs)
        return replay.bind(node.equation, values, changes, node.callers)

    return Placement(tuple(ins), tuple(outs), run)


def changed(
    node: Node,
    axis: Axis,
    params: Params | None,
    count: int,
    ins: Sequence[State],
    outs: Sequence[State],
) -> Mapping[str, Any]:
    """The parameters that differ for a piece of `count` units."""
    if params is None:
        return {}
    local_ins = [local_shape(count, v.shape, s) for v, s in zip(node.inputs, ins, strict=True)]
    local_outs = [local_shape(count, v.shape, s) for v, s in zip(node.outputs, outs, strict=True)]
    return params(node, axis, local_ins, local_outs)


def checked(node: Node, placement: Placement, piece: Piece, values: Sequence[Any]) -> list[Any]:
    """The outputs of one piece, each of the shape and type that the placement promises."""
    made = placement.run(piece, values)
    for value, state, array in zip(node.outputs, placement.outs, made, strict=True):
        wanted = piece.local(value.shape, state)
        if tuple(array.shape) != wanted or array.dtype != value.dtype:
            raise Refused(
                f"a piece of {node.name} is {array.dtype}{list(array.shape)}, "
                f"not {value.dtype}{list(wanted)}"
            )
    return made


def _axis_at(axes: Axes, slot: Slot, dimension: int) -> Axis | None:
    for axis in axes:
        dimensions = axis.outs if slot.output else axis.ins
        if dimensions[slot.position] == dimension:
            return axis
    return None


def same(node: Node, dimensions: Sequence[int]) -> Axes:
    """Axes that have one number in all inputs and outputs."""
    return [Axis((d,) * len(node.inputs), (d,) * len(node.outputs)) for d in dimensions]
