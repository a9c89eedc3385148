"""How the pieces hold a value: whole, split or partial; how a piece is cut out and put back."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives


class Refused(Exception):
    """The step cannot run in these pieces; the text says why."""


class _Whole(enum.Enum):
    WHOLE = "whole"


WHOLE = _Whole.WHOLE


@dataclass(frozen=True, slots=True)
class Split:
    """Each piece holds a part of one dimension.

    The dimension is seen as `[outer, units, inner]`. A piece takes some of the units.
    """

    dimension: int
    outer: int = 1
    inner: int = 1

    def at(self, dimension: int) -> Split:
        """The same part, of another dimension."""
        return replace(self, dimension=dimension)


@dataclass(frozen=True, slots=True)
class Partial:
    """Each piece holds a value of full shape. The true value is their sum, maximum or minimum."""

    operation: str


State = _Whole | Split | Partial
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """How many units there are, and how many of them one piece takes."""

    units: int
    count: int

    @property
    def full(self) -> int:
        """How many pieces are of full size."""
        return self.units // self.count

    @property
    def rest(self) -> int:
        """How many units the last, shorter piece takes. 0 when there is none."""
        return self.units % self.count

    def counts(self) -> Iterator[int]:
        """The number of units of each kind of piece."""
        yield self.count
        if self.rest:
            yield self.rest

    def covers(self, shape: Sequence[int], split: Split) -> bool:
        """Whether `split` describes a dimension of `shape` exactly."""
        return (
            split.dimension < len(shape)
            and shape[split.dimension] == split.outer * self.units * split.inner
        )


def cut_along(size: int, dimension: int, n: int, *, strided: bool) -> tuple[Grid, Split]:
    """The grid and the split for `n` pieces of a dimension of `size` elements.

    Strided pieces take every n-th element, so that a sharded dimension stays on its devices.
    """
    if not 2 <= n <= size:
        raise Refused(f"a dimension of {size} elements cannot be cut into {n} pieces")
    if size % n == 0:
        inner = size // n
        return Grid(n, 1), Split(dimension, inner, 1) if strided else Split(dimension, 1, inner)
    if strided:
        raise Refused(f"{n} strided pieces do not divide a dimension of {size} elements")
    return Grid(size, -(-size // n)), Split(dimension)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece: `count` units from unit `start` on. `start` may be traced."""

    grid: Grid
    start: Any
    count: int

    def local(self, shape: Sequence[int], state: State) -> Shape:
        """The shape that this piece has of a value."""
        return local_shape(self.count, shape, state)

    def cut(self, array: jax.Array, split: Split) -> jax.Array:
        """This piece of an array."""
        shape, axis = self._view(array.shape, split)
        sizes = list(shape)
        sizes[axis] = self._extent(split)
        starts = self._starts(len(shape), axis, split)
        part = primitives.dynamic_slice_p.bind(_as(array, shape), *starts, slice_sizes=tuple(sizes))
        return _as(part, self.local(array.shape, split))

    def put(self, buffer: jax.Array, part: jax.Array, split: Split) -> jax.Array:
        """The buffer with this piece in its place."""
        shape, axis = self._view(buffer.shape, split)
        place = (*shape[:axis], self._extent(split), *shape[axis + 1 :])
        starts = self._starts(len(shape), axis, split)
        whole = primitives.dynamic_update_slice_p.bind(
            _as(buffer, shape), _as(part, place), *starts
        )
        return _as(whole, buffer.shape)

    def share(self, array: jax.Array, operation: str) -> jax.Array:
        """A whole value as the partial value of this piece."""
        if operation != "sum":
            return array
        first = jnp.broadcast_to(self.start == 0, array.shape)
        return lax.select(first, array, jnp.zeros_like(array))

    def _view(self, shape: Sequence[int], split: Split) -> tuple[Shape, int]:
        """The shape in which a piece is one block, and the dimension that the block is cut from."""
        d = split.dimension
        if split.outer == 1:
            return tuple(shape), d
        return (*shape[:d], split.outer, self.grid.units * split.inner, *shape[d + 1 :]), d + 1

    def _extent(self, split: Split) -> int:
        return self.count * split.inner

    def _starts(self, rank: int, axis: int, split: Split) -> list[Any]:
        """Where the block begins. It is never negative, so that no index needs to be wrapped."""
        start = lax.convert_element_type(self.start, jnp.int32)
        if split.inner != 1:
            start = lax.mul(start, jnp.int32(split.inner))
        return [start if d == axis else jnp.int32(0) for d in range(rank)]


def _as(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    return array if array.shape == tuple(shape) else lax.reshape(array, shape)


def local_shape(count: int, shape: Sequence[int], state: State) -> Shape:
    """The shape that a piece of `count` units has of a value."""
    if not isinstance(state, Split):
        return tuple(shape)
    size = state.outer * count * state.inner
    return (*shape[: state.dimension], size, *shape[state.dimension + 1 :])


def reshaped(units: int, before: Sequence[int], split: Split, after: Sequence[int]) -> Split | None:
    """The split of a reshaped value with the same elements in the same order, if there is one."""
    outside = math.prod(before[: split.dimension]) * split.outer
    passed = 1
    for d, size in enumerate(after):
        if passed * size > outside:
            exact = outside % passed == 0 and passed * size % (outside * units) == 0
            return (
                Split(d, outside // passed, passed * size // (outside * units)) if exact else None
            )
        passed *= size
    return None
