"""An estimate of what a forward pass keeps for its backward pass, and of what a checkpoint frees.

An equation that is not linear in its inputs keeps them, or its output. What XLA then computes again
by itself is not known here, so the estimate ranks places and is no measurement.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal

from hbmwatch._jax.calls import Function
from hbmwatch._jax.forward import Body, Run, is_checkpoint, length_of
from hbmwatch._jax.scans import scan_inputs

# Linear in each input, so the backward pass keeps only inputs that are not floats.
_LINEAR = frozenset(
    """
    add add_any all_gather all_to_all broadcast_in_dim concatenate convert_element_type copy copy_p
    cumsum device_put dynamic_slice dynamic_update_slice expand_dims gather iota neg pad ppermute
    psum reduce_precision reduce_sum reshape rev scatter-add select_n sharding_constraint slice
    split squeeze stop_gradient sub transpose
    """.split()
)
# The backward pass needs the output and no input.
_BY_OUTPUT = frozenset("exp exp2 expm1 logistic tanh sqrt rsqrt cbrt erf_inv".split())


@dataclass(frozen=True, slots=True)
class Effect:
    """What a checkpoint around each call of one function does, in estimated bytes.

    Attributes:
        calls: How often the function runs.
        freed: What is no longer kept.
        inputs: The inputs of the calls, which are kept.
        kept: Those of them that were not kept before.
        largest: What the backward pass of one call needs again.
        again: How much less exists at once in the backward pass of the user's own jax.checkpoint,
            where the calls are in one.
        in_a_row: How many calls follow one another in one jaxpr, or in one scan.
    """

    calls: int
    freed: int
    inputs: int
    kept: int
    largest: int
    again: int
    in_a_row: int

    @property
    def saves(self) -> int:
        """How much lower the peak is, at best."""
        return self.freed - self.kept - self.largest + self.again

    def with_another(self, other: Effect) -> Effect:
        """The effect of the calls of both."""
        return _together([self, other])

    def nested(self) -> int:
        """How much lower it is if groups of calls are in a checkpoint too."""
        return self.saves + self.inputs - 2 * self.inputs // max(math.isqrt(self.in_a_row), 1)


class Estimate:
    """The estimates for one forward pass."""

    def __init__(self, body: Body) -> None:
        self._kept: dict[int, _Kept] = {}
        self._effects: dict[int, dict[Function, Effect]] = {}
        self.total = self._of(body).total + self._again(body)
        self.effects = self._effects_in(body)

    def _of(self, body: Body) -> _Kept:
        if id(body) not in self._kept:
            inner = {index: [self._of(each) for each in body.inner[index]] for index in body.inner}
            self._kept[id(body)] = _Kept(body, inner)
        return self._kept[id(body)]

    def _again(self, body: Body) -> int:
        """The most that one jax.checkpoint of the user computes again at once."""
        own = [0]
        for index, bodies in body.inner.items():
            own += [self._again(each) for each in bodies]
            if is_checkpoint(body.equations[index]):
                own += [self._of(each).total for each in bodies]
        return max(own)

    def _effects_in(self, body: Body) -> dict[Function, Effect]:
        if id(body) not in self._effects:
            found: dict[Function, list[Effect]] = defaultdict(list)
            for function, runs in body.runs.items():
                found[function].append(self._of(body).effect(runs))
            for index, bodies in body.inner.items():
                length = length_of(body, index)
                again = is_checkpoint(body.equations[index])
                for function, effect in self._inner(bodies).items():
                    covered = body.runs.get(function, ())
                    if not any(run.start <= index < run.stop for run in covered):
                        effect = _at_once(effect) if again else _repeated(effect, length)
                        found[function].append(effect)
            self._effects[id(body)] = {each: _together(found[each]) for each in found}
        return self._effects[id(body)]

    def _inner(self, bodies: Iterable[Body]) -> dict[Function, Effect]:
        found: dict[Function, list[Effect]] = defaultdict(list)
        for body in bodies:
            for function, effect in self._effects_in(body).items():
                found[function].append(effect)
        return {each: _together(found[each]) for each in found}


class _Kept:
    """What one jaxpr keeps for the backward pass."""

    def __init__(self, body: Body, inner: dict[int, list[_Kept]]) -> None:
        self.body = body
        self.inside = {
            index: max(each.total for each in bodies) * length_of(body, index)
            for index, bodies in inner.items()
            if not is_checkpoint(body.equations[index])
        }
        self.made: dict[Any, int] = {}
        self.needed: dict[Any, list[int]] = defaultdict(list)
        for index, equation in enumerate(body.equations):
            for value in equation.outvars:
                self.made[value] = index
            bodies = inner[index] if index in self.inside else []
            for value in _needed_by_bodies(equation, bodies) if bodies else _needed(equation):
                self.needed[value].append(index)
        self.carried = _carried(body)
        own = (v for v in self.needed if v in self.made or v in self.carried)
        self.total: int = sum(map(nbytes, own)) + sum(self.inside.values())

    def effect(self, runs: list[Run]) -> Effect:
        """What a checkpoint around each of these calls does."""
        freed = [self._freed(run) for run in runs]
        inputs = set().union(*(self._inputs(run) for run in runs))
        return Effect(
            calls=len({run.call for run in runs}),
            freed=sum(freed),
            inputs=sum(map(nbytes, inputs)),
            kept=sum(nbytes(value) for value in inputs if value not in self.needed),
            largest=max(freed),
            again=0,
            in_a_row=len(runs),
        )

    def _freed(self, run: Run) -> int:
        """The values made in the call that no equation outside of it needs."""
        inside = sum(size for i, size in self.inside.items() if run.start <= i < run.stop)
        made = {
            value
            for equation in self.body.equations[run.start : run.stop]
            for value in equation.outvars
            if value in self.needed and not self._needed_outside(value, run)
        }
        return inside + sum(map(nbytes, made))

    def _inputs(self, run: Run) -> set[Any]:
        """The values that a call takes, without those that exist all the time."""
        return {
            value
            for equation in self.body.equations[run.start : run.stop]
            for value in equation.invars
            if not isinstance(value, Literal)
            and (value in self.carried or self.made.get(value, run.start) < run.start)
        }

    def _needed_outside(self, value: Any, run: Run) -> bool:
        return any(not run.start <= index < run.stop for index in self.needed[value])


def nbytes(value: Any) -> int:
    """The bytes of a value of a jaxpr; 0 for what has no size."""
    aval = value.aval
    shape: tuple[int, ...] = getattr(aval, "shape", ())
    return math.prod(shape) * int(getattr(aval.dtype, "itemsize", 8))


def _needed_by_bodies(equation: Any, bodies: Iterable[_Kept]) -> list[Any]:
    """The inputs of an equation that its bodies need in the backward pass."""
    found = []
    for kept in bodies:
        inputs = kept.body.closed.jaxpr.invars
        outer = equation.invars[len(equation.invars) - len(inputs) :]  # a cond has one more
        pairs = zip(inputs, outer)
        found += [v for own, v in pairs if own in kept.needed and not isinstance(v, Literal)]
    return found


def _needed(equation: Any) -> list[Any]:
    """The values that the backward pass of an equation without bodies needs."""
    name = equation.primitive.name
    inputs = [value for value in equation.invars if not isinstance(value, Literal)]
    if not any(_is_float(value) for value in equation.outvars):
        return []
    if name in _BY_OUTPUT:
        return [value for value in equation.outvars if _is_float(value)]
    if name in _LINEAR:
        return [value for value in inputs if not _is_float(value)]
    return inputs


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(getattr(value.aval, "dtype", jnp.int32), jnp.inexact))


def _carried(body: Body) -> set[Any]:
    """The inputs of a scan's body that are new in each step and that the scan does not keep."""
    if body.scan is None:
        return set()
    layout = scan_inputs(body.scan.params)
    inputs = body.closed.jaxpr.invars
    return set(inputs[layout.constants : layout.constants + layout.carried])


def _repeated(effect: Effect, length: int) -> Effect:
    """The effect of calls in the body of a loop."""
    return replace(
        effect,
        calls=effect.calls * length,
        freed=effect.freed * length,
        inputs=effect.inputs * length,
        kept=effect.kept * length,
        in_a_row=length if effect.calls == 1 else effect.in_a_row,
    )


def _at_once(effect: Effect) -> Effect:
    """The effect of calls in a jax.checkpoint, whose backward pass keeps them for a moment."""
    return replace(effect, freed=0, inputs=0, kept=0, largest=0, again=max(effect.saves, 0))


def _together(effects: list[Effect]) -> Effect:
    """The effect of all the calls of one function."""
    return Effect(
        calls=sum(each.calls for each in effects),
        freed=sum(each.freed for each in effects),
        inputs=sum(each.inputs for each in effects),
        kept=sum(each.kept for each in effects),
        largest=max(each.largest for each in effects),
        again=max(each.again for each in effects),
        in_a_row=max(each.in_a_row for each in effects),
    )
