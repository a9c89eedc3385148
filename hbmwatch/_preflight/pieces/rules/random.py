"""PRNG keys: an array of keys is cut by key, and the bits of a key by their numbers.

The bits of a threefry key are a function of the key and of the number of each element. With
jax_threefry_partitionable off, elements are paired: one hash gives the bits of two, and is computed
for each of them here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node, Value
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule
from hbmwatch._preflight.pieces.split import Piece, Shape, Split

# An unsigned number of 64 bits in two arrays of 32 bits: the high part and the low part.
Wide = tuple[Any, Any]


def _key_axes(node: Node) -> Axes:
    """The dimensions of the array of keys, which lead on both sides."""
    (value,), (out,) = node.inputs, node.outputs
    if not _threefry(value) and not _threefry(out):
        return []
    shared = min(len(value.shape), len(out.shape))
    return [Axis((d,), (d,)) for d in range(shared)]


def _bits_axes(node: Node) -> Axes:
    """The dimensions of the array of keys, and those of the bits of each key."""
    (key,), (out,) = node.inputs, node.outputs
    axes = _key_axes(node)
    if axes or not key.shape:
        if _threefry(key) and _has_numbers(node.params["bit_width"], out.shape[len(key.shape) :]):
            axes += [Axis((None,), (d,)) for d in range(len(key.shape), len(out.shape))]
    return axes


def _is_partitionable() -> bool:
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable)


def _has_numbers(bit_width: int, shape: Shape) -> bool:
    """Whether the bits of each element follow from its number alone."""
    size = math.prod(shape)
    if _is_partitionable():
        return bit_width <= 32
    return bit_width == 32 and size % 2 == 0 and size < (1 << 32) - 1


def _bits(node: Node, split: Split | None, piece: Piece, values: Sequence[Any]) -> list[Any]:
    """The bits of a piece: those of the keys of the piece, or those of its numbers."""
    (keys,), (key,), (out,) = values, node.inputs, node.outputs
    rank = len(key.shape)
    if split is None or split.dimension < rank:
        return replay.bind(node.equation, values, {}, node.callers)
    numbers = flat_numbers(out.shape[rank:], split.at(split.dimension - rank), piece)
    shape = piece.local(out.shape, split)
    data = jax.random.key_data(keys)
    halves = (data[..., half] for half in range(2))
    known = [lax.broadcast_in_dim(half, shape, range(rank)) for half in halves]
    high, low = (lax.broadcast_in_dim(half, shape, range(rank, len(shape))) for half in numbers)
    if _is_partitionable():
        one, other = threefry2x32_p.bind(*known, high, low)
        return [lax.convert_element_type(one ^ other, out.dtype)]
    half = jnp.uint32(math.prod(out.shape[rank:]) // 2)
    is_first = low < half
    first = lax.select(is_first, low, low - half)
    return [lax.select(is_first, *threefry2x32_p.bind(*known, first, first + half))]


def flat_numbers(shape: Shape, split: Split, piece: Piece) -> Wide:
    """The number of each element of a piece in the whole array, in the order of its elements."""
    local = piece.local(shape, split)
    total: Wide = (jnp.zeros(local, jnp.uint32), jnp.zeros(local, jnp.uint32))
    for d, size in enumerate(shape):
        line = lax.iota(jnp.uint32, size)
        line = piece.cut(line, split.at(0)) if d == split.dimension else line
        index = lax.broadcast_in_dim(line, local, (d,))
        total = _plus(total, _times(index, math.prod(shape[d + 1 :])))
    return total


def _times(index: Any, stride: int) -> Wide:
    """The product of numbers of 32 bits and one of 64, in halves of 16 bits, which do not wrap."""
    high, low = (jnp.uint32(part) for part in divmod(stride, 1 << 32))
    half, mask = jnp.uint32(16), jnp.uint32((1 << 16) - 1)
    crossed = (index & mask) * (low >> half), (index >> half) * (low & mask)
    carried = ((index & mask) * (low & mask)) >> half
    carried += sum((part & mask for part in crossed), jnp.uint32(0))
    top = (index >> half) * (low >> half) + sum((part >> half for part in crossed), jnp.uint32(0))
    return top + (carried >> half) + index * high, index * low


def _plus(one: Wide, other: Wide) -> Wide:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < one[1]).astype(jnp.uint32), low


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
    "random_bits": Rule(_bits_axes, run=_bits),
    "random_split": Rule(_key_axes),
    "random_wrap": Rule(_key_axes),
    "random_unwrap": Rule(_key_axes),
    "random_seed": Rule(_key_axes),
    "random_fold_in": Rule(_fold_axes),
}
