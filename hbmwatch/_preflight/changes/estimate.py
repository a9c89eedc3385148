"""A rough peak of a jaxpr, to decide which change the compiler is asked about first."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Jaxpr, Literal

from hbmwatch._preflight.changes.call import nbytes
from hbmwatch._preflight.changes.sources import bodies
from hbmwatch._preflight.pieces.rules import reductions
from hbmwatch._preflight.pieces.rules.elementwise import RULES

# Reductions read the elements as they are made.
_READS_AT_ONCE = frozenset({*RULES, *(name for name in reductions.RULES if "reduce" in name)})
_MADE_AT_ONCE = frozenset({*RULES, "broadcast_in_dim", "iota"})


def estimated_peak_bytes(closed: Any, *, fused: bool = False) -> int:
    """The most bytes that are live between two equations, if XLA reordered nothing.

    It compares rewrites of one program. As a figure of its own it is often too high, and it is too
    low for a loop that needs the old and the new value of what it carries at once.

    Args:
        closed: The closed jaxpr.
        fused: Whether elementwise values that only elementwise operations and reductions read take
            no memory, as if XLA fused all of these.
    """
    return _peak(closed.jaxpr, fused)


def _peak(jaxpr: Jaxpr, fused: bool) -> int:
    free = _fused(jaxpr) if fused else set()

    def _size(variable: Any) -> int:
        return 0 if variable in free else _bytes(variable)

    last = _last_uses(jaxpr)
    live = {v: _size(v) for v in (*jaxpr.invars, *jaxpr.constvars)}
    total = peak = sum(live.values())
    for number, equation in enumerate(jaxpr.eqns):
        inputs = {v for v in equation.invars if not isinstance(v, Literal)}
        made = sum(map(_size, equation.outvars))
        during = total + made + _inside(equation, fused) - _reused(equation, inputs, last, number)
        peak = max(peak, during)
        for v in equation.outvars:
            live[v] = _size(v)
        total += made
        for v in (*inputs, *equation.outvars):
            if last.get(v, -1) <= number and v in live:
                total -= live.pop(v)
    return peak


def _fused(jaxpr: Jaxpr) -> set[Any]:
    """The values that XLA need not keep, because all that read them are fused with them."""
    made = {
        v
        for equation in jaxpr.eqns
        if equation.primitive.name in _MADE_AT_ONCE
        for v in equation.outvars
    }
    kept = {
        v
        for equation in jaxpr.eqns
        if equation.primitive.name not in _READS_AT_ONCE
        for v in equation.invars
        if not isinstance(v, Literal)
    }
    kept |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    return made - kept


def _inside(equation: Any, fused: bool) -> int:
    """What the bodies of an equation need besides their inputs and outputs."""
    extra = 0
    for body in bodies(equation):
        known = sum(map(_bytes, {*body.invars, *body.constvars}))
        made = sum(_bytes(v) for v in body.outvars if not isinstance(v, Literal))
        extra = max(extra, _peak(body, fused) - known - made)
    return extra


def _reused(equation: Any, inputs: set[Any], last: dict[Any, int], number: int) -> int:
    """The bytes of outputs that can have the memory of inputs that nothing reads any more.

    A loop keeps what it carries in place, and elementwise operations write over an input.
    """
    if equation.primitive.name not in RULES and not any(bodies(equation)):
        return 0
    free = [(v.aval.shape, v.aval.dtype) for v in inputs if last.get(v, -1) <= number]
    reused = 0
    for v in equation.outvars:
        form = getattr(v.aval, "shape", None), getattr(v.aval, "dtype", None)
        if form in free:
            free.remove(form)
            reused += _bytes(v)
    return reused


def _last_uses(jaxpr: Jaxpr) -> dict[Any, int]:
    """The number of the last equation that reads each value; arguments and outputs stay."""
    end = len(jaxpr.eqns)
    last: dict[Any, int] = {}
    for number, equation in enumerate(jaxpr.eqns):
        for v in equation.invars:
            if not isinstance(v, Literal):
                last[v] = number
    kept = (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)
    last.update((v, end) for v in kept if not isinstance(v, Literal))
    return last


def _bytes(variable: Any) -> int:
    aval = variable.aval
    return nbytes(aval) if hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
