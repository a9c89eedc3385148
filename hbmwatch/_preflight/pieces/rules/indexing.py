"""Gathers, scatters and dynamic slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule
from hbmwatch._preflight.pieces.split import Shape


def _gather_axes(node: Node) -> Axes:
    """The batch dimensions of the indices, and the dimensions that each slice takes fully.

    A slice that takes a dimension fully starts at 0 there, or is outside as a whole, whatever the
    size. So a piece of the dimension behaves as the dimension does.
    """
    numbers, sizes = node.params["dimension_numbers"], node.params["slice_sizes"]
    operand, _indices = node.shapes
    batched, batches = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    windows = numbers.offset_dims
    places = [d for d in range(len(node.outputs[0].shape)) if d not in windows]
    axes = []
    for k, place in enumerate(places):
        own = batched[batches.index(k)] if k in batches else None
        axes.append(Axis((own, k), (place,)))
    gone = {*numbers.collapsed_slice_dims, *batched}
    kept = [d for d in range(len(operand)) if d not in gone]
    for window, d in zip(windows, kept, strict=True):
        if sizes[d] == operand[d]:
            axes.append(Axis((d, None), (window,)))
    return axes


def _gather_params(
    node: Node, axis: Axis, ins: Sequence[Shape], outs: Sequence[Shape]
) -> Mapping[str, Any]:
    if axis.ins[0] is None or axis.ins[1] is not None:
        return {}
    sizes = list(node.params["slice_sizes"])
    sizes[axis.ins[0]] = ins[0][axis.ins[0]]
    return {"slice_sizes": tuple(sizes)}


def _scatter_axes(node: Node) -> Axes:
    """As for a gather. Pieces of the updates add up, or make the maximum or the minimum."""
    numbers = node.params["dimension_numbers"]
    operand, _, updates = node.shapes
    batched, batches = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    windows = numbers.update_window_dims
    places = [d for d in range(len(updates)) if d not in windows]
    together = _TOGETHER.get(node.name.replace("-", "_"))
    axes = []
    for k, place in enumerate(places):
        if k in batches:
            own = batched[batches.index(k)]
            axes.append(Axis((own, k, place), (own,)))
        elif together is not None:
            shared = frozenset({0})
            axes.append(Axis((None, k, place), (None,), reduce=together, shared=shared))
    gone = {*numbers.inserted_window_dims, *batched}
    kept = [d for d in range(len(operand)) if d not in gone]
    for window, d in zip(windows, kept, strict=True):
        if updates[window] == operand[d]:
            axes.append(Axis((d, None, window), (d,)))
    return axes


def _dynamic_slice_axes(node: Node) -> Axes:
    """The dimensions that are taken fully: their index is clamped to 0."""
    operand, *rest = node.shapes
    full = [d for d, size in enumerate(operand) if node.params["slice_sizes"][d] == size]
    return [Axis((d, *(None for _ in rest)), (d,)) for d in full]


def _slice_sizes(
    node: Node, axis: Axis, ins: Sequence[Shape], outs: Sequence[Shape]
) -> Mapping[str, Any]:
    return {"slice_sizes": outs[0]}


def _dynamic_update_axes(node: Node) -> Axes:
    """The dimensions that the update fills."""
    operand, update, *rest = node.shapes
    full = [d for d, size in enumerate(operand) if update[d] == size]
    return [Axis((d, d, *(None for _ in rest)), (d,)) for d in full]


# Scatters whose updates may come piece by piece, and how the pieces make the output.
_TOGETHER = {"scatter_add": "sum", "scatter_max": "max", "scatter_min": "min"}
_SCATTERS = ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")

RULES = {
    "gather": Rule(_gather_axes, params=_gather_params),
    **{name: Rule(_scatter_axes) for name in _SCATTERS},
    **{name.replace("_", "-"): Rule(_scatter_axes) for name in _SCATTERS[1:]},
    "dynamic_slice": Rule(_dynamic_slice_axes, params=_slice_sizes),
    "dynamic_update_slice": Rule(_dynamic_update_axes),
}
