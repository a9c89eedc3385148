"""The program run stage by stage: what is whole, then a loop over the pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from hbmwatch._preflight.pieces.analysis import SAME, Analysis
from hbmwatch._preflight.pieces.program import Value
from hbmwatch._preflight.pieces.schedule import Known, Schedule, Stage, read
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Partial, Piece, Split, State

# The rows of a tile of the narrowest dtype.
_TILE_ROWS = 32


def run(
    analysis: Analysis, schedule: Schedule, args: Sequence[Any], donated: Collection[int] = ()
) -> list[Any]:
    """The outputs of the program; some take the memory of donated arguments, piece by piece."""
    program = analysis.program
    written = _written_over(analysis, schedule, donated)
    known: Known = dict(zip(((v, WHOLE) for v in program.inputs), args, strict=True))
    for stage in schedule.stages:
        for step in stage.before:
            step.run(None, known)
        if stage.exports:
            _loop(analysis, stage, known, written)
    return [read(known, (value, WHOLE)) for value in program.outputs]


def _written_over(
    analysis: Analysis, schedule: Schedule, donated: Collection[int]
) -> dict[Value, Value]:
    """Outputs whose pieces are written over those of the donated argument that they replace.

    Each piece of such an argument is read once, before the output's piece takes its place. JAX
    gives the memory of a donated argument to the first free output of its type.
    """
    program = analysis.program
    free = [program.inputs[i] for i in sorted(donated)]
    found: dict[Value, Value] = {}
    for value in program.outputs:
        types = value.shape, value.dtype
        source = next((v for v in free if (v.shape, v.dtype) == types), None)
        if source is None:
            continue
        free.remove(source)
        state = analysis.state[value]
        own = state, analysis.stage[value]
        if isinstance(state, Split) and schedule.cut_once(source) == own:
            found[value] = source
    return found


def _loop(analysis: Analysis, stage: Stage, known: Known, written: Mapping[Value, Value]) -> None:
    """Run all pieces of one stage, one after another, and keep what they make whole."""
    grid = analysis.grid
    stacked = [
        v for v in stage.exports if v not in written and _is_stack(v, analysis.state[v], grid)
    ]
    holders = [_Holder(v, analysis) for v in stage.exports if v not in stacked]
    over = [written.get(holder.value) for holder in holders]

    def one(held: list[Any], start: Any, count: int) -> tuple[list[Any], list[Any]]:
        piece, local = Piece(grid, start, count), dict(known)
        local.update(((v, WHOLE), array) for v, array in zip(over, held, strict=True) if v)
        for step in stage.loop:
            step.run(piece, local)
        after = [
            holder.add(piece, array, local[holder.key])
            for holder, array in zip(holders, held, strict=True)
        ]
        return after, [local[v, analysis.state[v]] for v in stacked]

    def body(held: list[Any], start: Any) -> tuple[list[Any], list[Any]]:
        return one(held, start, grid.count)

    held = [
        holder.empty() if v is None else known[v, WHOLE]
        for holder, v in zip(holders, over, strict=True)
    ]
    blocks: list[Any] = []
    if grid.full > 1:
        held, blocks = lax.scan(body, held, jnp.arange(grid.full, dtype="int32") * grid.count)
    else:
        held, _ = one(held, jnp.int32(0), grid.count)
    if grid.rest:
        held, _ = one(held, jnp.int32(grid.full * grid.count), grid.rest)
    for holder, array in zip(holders, held, strict=True):
        known[holder.value, WHOLE] = holder.whole(array)
    for value, array in zip(stacked, blocks, strict=True):
        known[value, WHOLE] = lax.reshape(array, value.shape)


def _is_stack(value: Value, state: State, grid: Grid) -> bool:
    """Whether the pieces are blocks of the first dimension, which a scan can stack.

    Then they may also be sent to the host one by one. A stack takes no more memory than the value
    where the tiles of a TPU, of two dimensions, do not reach over blocks.
    """
    if not isinstance(state, Split) or (state.dimension, state.outer) != (0, 1):
        return False
    if grid.full < 2 or grid.rest or jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return False
    rows = grid.count * state.inner
    return len(value.shape) > 2 or (len(value.shape) == 2 and rows % _TILE_ROWS == 0)


class _Holder:
    """Where the pieces of one value come together."""

    def __init__(self, value: Value, analysis: Analysis) -> None:
        self.value = value
        self.state = analysis.state[value]
        self.key = (value, self.state)
        self._implementation: Any = None

    def empty(self) -> Any:
        """The holder before the first piece."""
        shape, dtype = self.value.shape, self.value.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            keys = jax.ShapeDtypeStruct(shape, dtype)
            data = jax.eval_shape(jax.random.key_data, keys)
            return jnp.zeros(data.shape, data.dtype)
        if isinstance(self.state, Partial) and self.state.operation in ("max", "min"):
            return jnp.full(shape, _least(dtype, self.state.operation), dtype)
        return jnp.zeros(shape, _wide(dtype) if self.state == Partial("sum") else dtype)

    def add(self, piece: Piece, held: Any, part: Any) -> Any:
        """The holder with one more piece."""
        if jnp.issubdtype(self.value.dtype, jax.dtypes.prng_key):
            self._implementation = jax.random.key_impl(part)
            part = jax.random.key_data(part)
        if isinstance(self.state, Split):
            return piece.put(held, part, self.state)
        assert isinstance(self.state, Partial)
        if self.state.operation == "sum":
            return held + part.astype(held.dtype)
        if self.state == SAME:
            return part
        return (lax.max if self.state.operation == "max" else lax.min)(held, part)

    def whole(self, held: Any) -> Any:
        """The value, from the holder after the last piece."""
        if self._implementation is not None:
            return jax.random.wrap_key_data(held, impl=self._implementation)
        return held.astype(self.value.dtype)


def _wide(dtype: Any) -> Any:
    """The type to add up in: float32 for narrower floats, whose rounding would add up too."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.float32 if narrow else dtype


def _least(dtype: Any, operation: str) -> Any:
    """The value that does not change a maximum, or a minimum."""
    if dtype == jnp.bool_:
        return operation == "min"
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if operation == "max" else jnp.inf
    limits = np.iinfo(dtype)
    return limits.min if operation == "max" else limits.max


def typed(array: Any, aval: Any) -> Any:
    """An output with the weak type that the program gives it."""
    if not getattr(aval, "weak_type", False):
        return array
    return primitives.convert_element_type_p.bind(
        array, new_dtype=aval.dtype, weak_type=True, sharding=None
    )
