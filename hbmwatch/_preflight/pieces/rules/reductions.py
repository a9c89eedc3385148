"""Reductions, products and convolutions: a dimension that is summed away gives partial values."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule

# How the parts of each reduction become one. Others keep the reduced dimensions whole.
_COMBINED = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
}
EXACT = frozenset(_COMBINED) - {"reduce_sum"}
_APART = ("reduce_prod", "reduce_xor", "argmax", "argmin")


def _reduction_axes(node: Node) -> Axes:
    """The dimensions that stay, and those that are reduced where the parts can become one."""
    gone = {int(d) for d in node.params["axes"]}
    combined = _COMBINED.get(node.name)
    axes, kept = [], 0
    for d in range(len(node.shapes[0])):
        if d not in gone:
            axes.append(Axis((d,), (kept,)))
            kept += 1
        elif combined is not None:
            axes.append(Axis((d,), (None,), reduce=combined))
    return axes


def _dot_axes(node: Node) -> Axes:
    """The batch dimensions, the contracted ones, and the free ones of either operand."""
    (left, right), (left_batch, right_batch) = node.params["dimension_numbers"]
    axes = [
        Axis((a, b), (k,)) for k, (a, b) in enumerate(zip(left_batch, right_batch, strict=True))
    ]
    axes += [Axis((a, b), (None,), reduce="sum") for a, b in zip(left, right, strict=True)]
    out = len(left_batch)
    for position, (used, shape) in enumerate(
        zip(((*left, *left_batch), (*right, *right_batch)), node.shapes, strict=True)
    ):
        for d in _others(shape, used):
            ins = (d, None) if position == 0 else (None, d)
            axes.append(Axis(ins, (out,)))
            out += 1
    return axes


def _convolution_axes(node: Node) -> Axes:
    """The batch and the features; the window slides over the others, which stay whole."""
    numbers = node.params["dimension_numbers"]
    if node.params["batch_group_count"] != 1:
        return []
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    axes = [Axis((left[0], None), (out[0],))]
    if node.params["feature_group_count"] == 1:
        axes.append(Axis((left[1], right[1]), (None,), reduce="sum"))
        axes.append(Axis((None, right[0]), (out[1],)))
    return axes


def _others(shape: Sequence[int], used: Sequence[int]) -> list[int]:
    return [d for d in range(len(shape)) if d not in used]


RULES = {
    **{name: Rule(_reduction_axes) for name in (*_COMBINED, *_APART)},
    "dot_general": Rule(_dot_axes),
    "conv_general_dilated": Rule(_convolution_axes),
}
