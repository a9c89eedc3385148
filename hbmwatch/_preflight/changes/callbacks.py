"""Leave out jax.debug.print and jax.debug.callback, which keep their operands alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.sources import located

_DEBUGGING = frozenset({"debug_callback", "debug_print"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutCallbacks(Edit):
    """The program without its debug callbacks."""

    numbers_values = True

    def on(self, call: Call) -> Call:
        """The call without them."""
        return call.rewritten(call.jaxpr.replace(jaxpr=_without(call.jaxpr.jaxpr)))


def _without(jaxpr: Jaxpr) -> Any:
    """The jaxpr without debug callbacks, in its bodies as well."""
    kept = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in _DEBUGGING:
            continue
        params = {name: _body_without(value) for name, value in equation.params.items()}
        kept.append(equation.replace(params=params, effects=_effects(equation.effects)))
    return jaxpr.replace(eqns=kept, effects=_effects(jaxpr.effects))


def _body_without(value: Any) -> Any:
    """A parameter of an equation, with the jaxprs in it changed."""
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_without(value.jaxpr))
    if isinstance(value, Jaxpr):
        return _without(value)
    if isinstance(value, tuple) and any(isinstance(each, (ClosedJaxpr, Jaxpr)) for each in value):
        return tuple(map(_body_without, value))
    return value


def _effects(effects: Any) -> frozenset[Any]:
    """The effects that are not those of debug callbacks."""
    return frozenset(e for e in effects if "DebugEffect" not in type(e).__name__)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    found = [
        line
        for equation, line in located(call.jaxpr.jaxpr)
        if equation.primitive.name in _DEBUGGING
    ]
    if not found:
        raise NothingToChange("the step has no debug callbacks")
    lines = tuple(dict.fromkeys(filter(None, found)))
    yield WithoutCallbacks(
        what="leaving out debug callbacks",
        code=f"remove jax.debug.print and jax.debug.callback ({', '.join(lines[:3])})",
        where=lines,
    )


CALLBACKS = Change(
    "callbacks", "C", "the same values, but debug callbacks print and report nothing", _edits
)
