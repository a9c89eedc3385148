"""PRNG keys: an array of keys is cut by key. The bits of one key are made whole."""

from __future__ import annotations

from hbmwatch._preflight.pieces.program import Node, Value
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule


def _key_axes(node: Node) -> Axes:
    """The dimensions of the array of keys, which lead on both sides."""
    (value,), (out,) = node.inputs, node.outputs
    if not _threefry(value) and not _threefry(out):
        return []
    shared = min(len(value.shape), len(out.shape))
    return [Axis((d,), (d,)) for d in range(shared)]


def _fold_axes(node: Node) -> Axes:
    """The dimensions of the new keys. One key or one number serves them all."""
    (out,) = node.outputs
    if not _threefry(out) or any(shape not in ((), out.shape) for shape in node.shapes):
        return []
    return [
        Axis(tuple(d if shape else None for shape in node.shapes), (d,))
        for d in range(len(out.shape))
    ]


def _threefry(value: Value) -> bool:
    """Whether it holds threefry keys: of other kinds, the bits depend on the neighbors."""
    return str(value.dtype) == "key<fry>"


RULES = {
    "random_bits": Rule(_key_axes),
    "random_split": Rule(_key_axes),
    "random_wrap": Rule(_key_axes),
    "random_unwrap": Rule(_key_axes),
    "random_seed": Rule(_key_axes),
    "random_fold_in": Rule(_fold_axes),
}
