"""Gathers and scatters whose indices pick elements along the dimension that is cut.

A piece holds some of the elements. It takes part with those indices that pick one of them: of a
gather, the pieces add up, and all but one of them are zero; a scatter changes its own elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import GatherScatterMode

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Partial, Piece, Split

_CLIP, _DROP = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP
_MODES = (_CLIP, _DROP, GatherScatterMode.PROMISE_IN_BOUNDS)
_NOT_PICKED = "the indices do not pick single elements along the dimension"
# Indices are computed as int32; wider ones could wrap around.
_INDICES = ("int8", "int16", "int32", "uint8", "uint16")


def place(node: Node, grid: Grid, slot: Slot, split: Split) -> Placement | str:
    """How to make the output of a gather or scatter whose operand is split; or why not."""
    gathers = node.name == "gather"
    if slot.position or (slot.output and gathers):
        return "the indices of all pieces would be needed"
    numbers, shape = node.params["dimension_numbers"], node.shapes[0]
    taken = numbers.collapsed_slice_dims if gathers else numbers.inserted_window_dims
    columns = numbers.start_index_map if gathers else numbers.scatter_dims_to_operand_dims
    dimension, mode = split.dimension, GatherScatterMode.from_any(node.params["mode"])
    if dimension not in taken or dimension not in columns or mode not in _MODES:
        return _NOT_PICKED
    if not grid.covers(shape, split) or str(node.inputs[1].dtype) not in _INDICES:
        return _NOT_PICKED
    if not jnp.issubdtype(node.outputs[0].dtype, jnp.number):
        return "the elements are no numbers, which add up"
    if not gathers and mode == _CLIP and len(columns) > 1:
        return "all indices are clamped"
    column = columns.index(dimension)

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        return (_gathered if gathers else _scattered)(node, piece, split, column, values)

    if gathers:
        return Placement((split, WHOLE), (Partial("sum"),), run)
    return Placement((split, WHOLE, WHOLE), (split,), run)


def _gathered(
    node: Node, piece: Piece, split: Split, column: int, values: Sequence[Any]
) -> list[Any]:
    operand, indices = values
    picked, is_inside = _picked(node, split, column, indices)
    local, is_own = _local(piece, split, picked)
    is_own = is_own & is_inside
    local = jnp.where(is_own, local, 0)
    if GatherScatterMode.from_any(node.params["mode"]) == _DROP:
        # One piece alone gives the value that stands for what lies outside.
        is_first = ~is_inside & (piece.start == 0)
        local, is_own = jnp.where(is_first, -1, local), is_own | is_first
    given = [operand, _with_column(indices, column, local)]
    (made,) = replay.bind(node.equation, given, {}, node.callers)
    windows = node.params["dimension_numbers"].offset_dims
    places = [d for d in range(made.ndim) if d not in windows]
    mask = lax.broadcast_in_dim(is_own, made.shape, places)
    return [lax.select(mask, made, jnp.zeros_like(made))]


def _scattered(
    node: Node, piece: Piece, split: Split, column: int, values: Sequence[Any]
) -> list[Any]:
    operand, indices, updates = values
    picked, is_inside = _picked(node, split, column, indices)
    local, is_own = _local(piece, split, picked)
    local = jnp.where(is_own & is_inside, local, operand.shape[split.dimension])
    changes = {"mode": _DROP, "indices_are_sorted": False, "unique_indices": False}
    given = [operand, _with_column(indices, column, local), updates]
    return replay.bind(node.equation, given, changes, node.callers)


def _picked(node: Node, split: Split, column: int, indices: Any) -> tuple[Any, Any]:
    """What the indices pick along the dimension, and whether there is such an element."""
    size = node.shapes[0][split.dimension]
    picked = indices[..., column].astype(jnp.int32)
    mode = GatherScatterMode.from_any(node.params["mode"])
    promised = node.name == "gather" and mode != _DROP
    if mode == _CLIP or promised:
        picked = jnp.clip(picked, 0, size - 1)
    return picked, (picked >= 0) & (picked < size)


def _local(piece: Piece, split: Split, picked: Any) -> tuple[Any, Any]:
    """The places of elements in a piece, and whether they lie in it."""
    block = piece.grid.units * split.inner
    outer, rest = picked // block, picked % block
    unit = rest // split.inner - jnp.asarray(piece.start, jnp.int32)
    local = (outer * piece.count + unit) * split.inner + rest % split.inner
    return local, (unit >= 0) & (unit < piece.count)


def _with_column(indices: Any, column: int, new: Any) -> Any:
    """The indices with other ones along one dimension."""
    number = lax.broadcasted_iota(jnp.int32, indices.shape, indices.ndim - 1)
    return jnp.where(number == column, new[..., None], indices.astype(jnp.int32))
