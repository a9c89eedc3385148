"""Pass arrays that the step closes over as arguments: XLA compiles constants into the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax import replay
from hbmwatch._preflight.changes.call import AroundGiven, Call, NothingToChange, nbytes, typed
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

# Smaller constants cost neither memory nor time to compile.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift(Edit):
    """The large constants of the program as arguments."""

    numbers_values = True

    def on(self, call: Call) -> Call:
        """The call whose large constants are inputs."""
        lifted = _large(call.jaxpr)
        if not lifted:
            raise NothingToChange("the step closes over no large array")
        shapes = [typed(each) for each in lifted]
        first = len(lifted)

        def run(*arrays: Any) -> list[Any]:
            by_id = {id(old): new for old, new in zip(lifted, arrays[:first], strict=True)}
            return _evaluated(call.jaxpr, arrays[first:], by_id)

        jaxpr = jax.make_jaxpr(run)(*shapes, *map(typed, call.jaxpr.in_avals))
        given = None if call.given is None else _LiftedAgain(call.given, self)
        return call.changed(jaxpr=jaxpr, constants=(*lifted, *call.constants), given=given)


@dataclass(frozen=True, slots=True, eq=False)
class _LiftedAgain(AroundGiven):
    """The user's step, whose constants become inputs again when it is traced again."""

    lift: Lift

    def retraced(self, shapes: Sequence[jax.ShapeDtypeStruct]) -> Call:
        return self.lift.on(self.given.retraced(shapes))

    def varied(self, variant: Callable[..., Any]) -> Call:
        new = self.given.varied(variant)
        try:
            return self.lift.on(new)
        except NothingToChange:  # a variant need not close over the same arrays
            return new


def _large(closed: Any) -> list[Any]:
    """The large constants of a jaxpr and of the calls in it, each array once."""
    found = {id(each): each for each in closed.consts if _is_large(each)}
    for equation in closed.jaxpr.eqns:
        body = _body(equation)
        if body is not None:
            found.update((id(each), each) for each in _large(body))
    return list(found.values())


def _is_large(constant: Any) -> bool:
    return hasattr(constant, "shape") and nbytes(constant) >= _LARGE_BYTES


def _body(equation: Any) -> Any:
    """The closed jaxpr of a plain call."""
    body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    plain = equation.primitive.name in ("pjit", "jit", "closed_call")
    return body if plain and isinstance(body, ClosedJaxpr) else None


def _evaluated(closed: Any, args: Any, by_id: Mapping[int, Any]) -> list[Any]:
    """The outputs, with other arrays for the constants; calls that hold a constant are inlined."""

    def step(equation: Any, values: list[Any]) -> list[Any]:
        body = _body(equation)
        if body is not None and _large(body):
            return _evaluated(body, values, by_id)
        return replay.bind(equation, values, {})

    consts = [by_id.get(id(each), each) for each in closed.consts]
    return replay.evaluated(closed.replace(consts=consts), args, step)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    lifted = _large(call.jaxpr)
    if not lifted:
        raise NothingToChange("the step closes over no large array")
    shown = ", ".join(f"{each.dtype.name}{list(each.shape)}" for each in lifted[:3])
    size = format_size(sum(nbytes(each) for each in lifted))
    yield Lift(
        what=f"passing {plural(len(lifted), 'closed-over array')} ({size}) as arguments",
        code=f"pass what the step closes over ({shown}) as arguments of the step",
    )


CONSTANTS = Change(
    "constants",
    "A",
    "the same operations: the values are the same, unless XLA folded the constants",
    _edits,
    stays=True,
)
