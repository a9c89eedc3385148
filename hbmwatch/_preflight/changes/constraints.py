"""Shard the largest values that the program makes, with a sharding constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax import replay
from hbmwatch._preflight.changes.call import Call, NothingToChange, nbytes, typed
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.sources import line_of

_MOST_SHAPES = 3
_MOST_DIMENSIONS = 2
# Only values that are at least this part of the largest one.
_LEAST_PART = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Constrain(Edit):
    """A sharding constraint on all values of one shape that the step itself makes."""

    numbers_values = True

    shape: tuple[int, ...]
    entries: tuple[Any, ...]

    def on(self, call: Call) -> Call:
        """The call with the constraint."""
        if call.mesh is None:
            raise NothingToChange("the step is not on a mesh of several devices")
        sharding = NamedSharding(call.mesh, PartitionSpec(*self.entries))

        def run(*arrays: Any) -> list[Any]:
            return _evaluated(call.jaxpr, arrays, self.shape, sharding)

        return call.rewritten(jax.make_jaxpr(run)(*map(typed, call.jaxpr.in_avals)))


def _evaluated(closed: Any, args: Any, shape: tuple[int, ...], sharding: Any) -> list[Any]:
    """The outputs of a jaxpr, with the constraint on the values of one shape."""

    def step(equation: Any, values: list[Any]) -> list[Any]:
        return [
            jax.lax.with_sharding_constraint(made, sharding)
            if getattr(v.aval, "shape", None) == shape
            else made
            for v, made in zip(equation.outvars, replay.bind(equation, values, {}), strict=True)
        ]

    return replay.evaluated(closed, args, step)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    mesh = call.mesh
    if mesh is None:
        raise NothingToChange("the step is not on a mesh of several devices")
    axes = tuple(name for name in mesh.axis_names if mesh.shape[name] > 1)
    parts = math.prod(mesh.shape[name] for name in axes)
    entry = axes if len(axes) > 1 else axes[0]
    tried = 0
    for shape, equation in _largest(call):
        fitting = [d for d, length in enumerate(shape) if length % parts == 0 and length >= parts]
        for d in fitting[:_MOST_DIMENSIONS]:
            entries = tuple(entry if i == d else None for i in range(len(shape)))
            line = line_of(equation)
            tried += 1
            yield Constrain(
                what=f"a sharding constraint on the values of shape {list(shape)}",
                code="jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("
                f"{', '.join(map(repr, entries))}))) on the result of {equation.primitive.name}"
                + (f" at {line}" if line else ""),
                where=(line,) if line else (),
                shape=shape,
                entries=entries,
            )
    if not tried:
        raise NothingToChange("no large value has a dimension that the mesh divides")


def _largest(call: Call) -> list[tuple[tuple[int, ...], Any]]:
    """The shapes of the largest values, each with the first equation that makes it."""
    found: dict[tuple[int, ...], tuple[int, Any]] = {}
    for equation in call.jaxpr.jaxpr.eqns:
        for v in equation.outvars:
            if getattr(v.aval, "shape", ()):
                found.setdefault(tuple(v.aval.shape), (nbytes(v.aval), equation))
    ordered = sorted(found.items(), key=lambda each: -each[1][0])
    largest = ordered[0][1][0] if ordered else 0
    return [
        (shape, equation)
        for shape, (size, equation) in ordered[:_MOST_SHAPES]
        if size * _LEAST_PART >= largest
    ]


CONSTRAINTS = Change(
    "constraint",
    "B",
    "the same values up to rounding: sums over several devices add up in another order",
    _edits,
)
