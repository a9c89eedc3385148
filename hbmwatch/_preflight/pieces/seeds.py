"""Where to cut: the largest values of a program and its arguments, each with its dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from hbmwatch._preflight.pieces.program import Program, Value, flatten

_FILLS = ("broadcast_in_dim", "iota")


@dataclass(frozen=True, slots=True)
class Seed:
    """A value and one of its dimensions.

    Attributes:
        value: The number of the value in the flat program.
        dimension: The dimension to cut.
        size: How many elements the dimension has.
        nbytes: The size of the whole value.
        argument: Which flat argument it is. None: the program makes it.
        primitive: The primitive that makes it. None for an argument.
    """

    value: int
    dimension: int
    size: int
    nbytes: int
    argument: int | None
    primitive: str | None


def seeds(closed: Any, *, most: int = 40) -> tuple[Seed, ...]:
    """The cuts that are worth a try, the most promising first.

    The largest values come first, for they must shrink. The first value of a shape stands for all
    of that shape. The arguments follow, largest first. A constant that is broadcast has no cut: no
    other value would be made in its pieces.

    Args:
        closed: The jaxpr of the step, after differentiation.
        most: How many to give back at most.
    """
    program = flatten(closed)
    return tuple(each for value in _ordered(program) for each in _of(program, value))[:most]


def _ordered(program: Program) -> Iterator[Value]:
    """The values to cut, each shape once."""
    used = {*program.outputs, *(v for node in program.nodes for v in node.inputs)}
    values = sorted((v for v in program.values if v in used), key=lambda v: -v.nbytes)
    filled = _filled(program)
    made = [v for v in values if v.node is not None and v not in filled]
    arguments = [v for v in values if v in program.inputs]
    largest = arguments[0].nbytes if arguments else 0
    seen: set[tuple[Any, ...]] = set()
    for value in (*(v for v in made if v.nbytes >= largest // 8), *arguments):
        key = (value.shape, str(value.dtype), value.index if value.node is None else None)
        if key not in seen and not jnp.issubdtype(value.dtype, jnp.bool_):
            seen.add(key)
            yield value


def _filled(program: Program) -> set[Value]:
    """The values that only fill an array, with a constant or with the numbers of its elements."""
    varying = set(program.inputs)
    for node in program.nodes:
        if any(value in varying for value in node.inputs):
            varying.update(node.outputs)
    fills = (node for node in program.nodes if node.name in _FILLS)
    return {value for node in fills for value in node.outputs if value not in varying}


def _of(program: Program, value: Value) -> Iterator[Seed]:
    argument = program.inputs.index(value) if value.node is None else None
    primitive = value.node.name if value.node is not None else None
    for dimension, size in enumerate(value.shape):
        if size > 1:
            yield Seed(value.index, dimension, size, value.nbytes, argument, primitive)
