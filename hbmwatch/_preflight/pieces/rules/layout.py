"""Primitives that move elements and leave each as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule, same
from hbmwatch._preflight.pieces.split import Piece, Shape, Split


def _broadcast_axes(node: Node) -> Axes:
    """Each dimension of the output. The input has it where the sizes agree."""
    if len(node.inputs) != 1:
        return []
    (shape,), to = node.shapes, [int(d) for d in node.params["broadcast_dimensions"]]
    axes = []
    for d, size in enumerate(node.outputs[0].shape):
        position = to.index(d) if d in to else None
        own = position if position is not None and shape[position] == size else None
        axes.append(Axis((own,), (d,)))
    return axes


def _iota_axes(node: Node) -> Axes:
    return [Axis((), (d,)) for d in range(len(node.outputs[0].shape))] if not node.inputs else []


def _iota(node: Node, split: Split | None, piece: Piece, values: Sequence[Any]) -> list[Any]:
    """The numbers of the piece: those of the whole dimension, cut as the dimension is."""
    (out,), along = node.outputs, node.params["dimension"]
    assert split is not None
    shape = piece.local(out.shape, split)
    if split.dimension != along:
        return replay.bind(node.equation, values, {"shape": shape}, node.callers)
    line = piece.cut(lax.iota(out.dtype, out.shape[along]), split.at(0))
    return [lax.broadcast_in_dim(line, shape, (along,))]


def _transpose_axes(node: Node) -> Axes:
    return [Axis((int(d),), (k,)) for k, d in enumerate(node.params["permutation"])]


def _squeeze_axes(node: Node) -> Axes:
    """The dimensions that stay."""
    gone = {int(d) % len(node.shapes[0]) for d in node.params["dimensions"]}
    kept = [d for d in range(len(node.shapes[0])) if d not in gone]
    return [Axis((d,), (k,)) for k, d in enumerate(kept)]


def _rev_axes(node: Node) -> Axes:
    return same(node, [d for d in _dims(node) if d not in node.params["dimensions"]])


def _pad_axes(node: Node) -> Axes:
    """The dimensions without padding; the padding value has none of them."""
    config = node.params["padding_config"]
    return [Axis((d, None), (d,)) for d in _dims(node) if tuple(config[d]) == (0, 0, 0)]


def _slice_axes(node: Node) -> Axes:
    """The dimensions that are taken as they are."""
    (shape,), p = node.shapes, node.params
    strides = p["strides"] or (1,) * len(shape)
    return same(
        node,
        [
            d
            for d, size in enumerate(shape)
            if p["start_indices"][d] == 0 and p["limit_indices"][d] == size and strides[d] == 1
        ],
    )


def _slice_params(
    node: Node, axis: Axis, ins: Sequence[Shape], outs: Sequence[Shape]
) -> Mapping[str, Any]:
    limits = list(node.params["limit_indices"])
    for d in axis.ins:
        assert d is not None
        limits[d] = ins[0][d]
    return {"limit_indices": tuple(limits)}


def _concatenate_axes(node: Node) -> Axes:
    return same(node, [d for d in _dims(node) if d != node.params["dimension"]])


def _split_axes(node: Node) -> Axes:
    return same(node, [d for d in _dims(node) if d != node.params["axis"]])


def _stack_axes(node: Node) -> Axes:
    """The dimensions of the parts; those after the new one are one further."""
    new = node.params["axis"]
    return [Axis((d,) * len(node.inputs), (d + (d >= new),)) for d in range(len(node.shapes[0]))]


def _unstack_axes(node: Node) -> Axes:
    """The dimensions of the parts; those after the lost one are one less."""
    gone = node.params["axis"]
    kept = [d for d in _dims(node) if d != gone]
    return [Axis((d,), (d - (d > gone),) * len(node.outputs)) for d in kept]


def _tile_axes(node: Node) -> Axes:
    """The dimensions that are not repeated."""
    return same(node, [d for d in _dims(node) if node.params["reps"][d] == 1])


def _dims(node: Node) -> range:
    return range(len(node.shapes[0]))


def _out_shape(
    node: Node, axis: Axis, ins: Sequence[Shape], outs: Sequence[Shape]
) -> Mapping[str, Any]:
    return {"shape": outs[0]}


RULES = {
    "broadcast_in_dim": Rule(_broadcast_axes, params=_out_shape),
    "concatenate": Rule(_concatenate_axes),
    "iota": Rule(_iota_axes, run=_iota),
    "pad": Rule(_pad_axes),
    "rev": Rule(_rev_axes),
    "slice": Rule(_slice_axes, params=_slice_params),
    "split": Rule(_split_axes),
    "squeeze": Rule(_squeeze_axes),
    "stack": Rule(_stack_axes),
    "tile": Rule(_tile_axes),
    "transpose": Rule(_transpose_axes),
    "unstack": Rule(_unstack_axes),
}
