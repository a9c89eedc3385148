"""A rough peak of a jaxpr, to decide which change the compiler is asked about first."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Jaxpr, Literal

from hbmwatch._preflight.changes.call import nbytes
from hbmwatch._preflight.changes.sources import bodies


def estimated_peak_bytes(closed: Any) -> int:
    """The most bytes that are live between two equations, if XLA fused and reordered nothing.

    It compares rewrites of one program; as a figure of its own it is too high.
    """
    return _peak(closed.jaxpr)


def _peak(jaxpr: Jaxpr) -> int:
    last = _last_uses(jaxpr)
    live = {v: _size(v) for v in (*jaxpr.invars, *jaxpr.constvars)}
    total = peak = sum(live.values())
    for number, equation in enumerate(jaxpr.eqns):
        inputs = {v for v in equation.invars if not isinstance(v, Literal)}
        outside = total - sum(live.get(v, 0) for v in inputs)
        inner = max((_peak(body) for body in bodies(equation)), default=0)
        for v in equation.outvars:
            live[v] = _size(v)
            total += live[v]
        peak = max(peak, total, outside + inner)
        for v in (*inputs, *equation.outvars):
            if last.get(v, -1) <= number and v in live:
                total -= live.pop(v)
    return peak


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


def _size(variable: Any) -> int:
    aval = variable.aval
    return nbytes(aval) if hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
