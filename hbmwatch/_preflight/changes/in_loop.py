"""Fetch from the host, or cast, in each step of a loop what was fetched or cast before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax import replay
from hbmwatch._jax.scans import scan_inputs
from hbmwatch._preflight.changes.call import HOST, Call, NothingToChange, nbytes, typed
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.sources import line_of
from hbmwatch._records.text import plural

# Smaller values are not worth the work in each step.
_LARGE_BYTES = 1 << 20
_NOTHING = "no value is cast, or fetched from the host, before a loop that is its only reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class InLoop(Edit):
    """Loops that fetch and cast what they read, step by step."""

    numbers_values = True

    def on(self, call: Call) -> Call:
        """The call whose loops do so."""
        moved = _moved(call.jaxpr.jaxpr)
        if not moved:
            raise NothingToChange(_NOTHING)

        def step(equation: Any, values: list[Any]) -> Sequence[Any]:
            if any(v in moved for v in equation.outvars):
                return values  # as it is: the loops do the rest
            late = {
                i: moved[v]
                for i, v in enumerate(equation.invars)
                if not isinstance(v, Literal) and v in moved
            }
            if not late:
                return replay.bind(equation, values, {})
            repeat = _scanned if equation.primitive.name == "scan" else _repeated
            return repeat(equation, values, late)

        def run(*arrays: Any) -> list[Any]:
            return replay.evaluated(call.jaxpr, arrays, step)

        shapes = [
            typed(aval, leaf.sharding if leaf is not None and leaf.is_on_host else None)
            for aval, leaf in zip(
                call.jaxpr.in_avals, (*(None for _ in call.constants), *call.arguments), strict=True
            )
        ]
        return call.rewritten(jax.make_jaxpr(run)(*shapes))


def _moved(jaxpr: Any) -> dict[Any, Any]:
    """Values that only loops read, with the equations that fetch or cast them."""
    readers: dict[Any, list[Any]] = defaultdict(list)
    for equation in jaxpr.eqns:
        for v in equation.invars:
            if not isinstance(v, Literal):
                readers[v].append((equation, equation.invars.index(v)))
    kept = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    return {
        equation.outvars[0]: equation
        for equation in jaxpr.eqns
        if _fetches(equation) or _casts(equation)
        for v in equation.outvars
        if v not in kept and nbytes(v.aval) >= _LARGE_BYTES
        if readers[v] and all(_is_read_by_loop(*reader) for reader in readers[v])
    }


def _fetches(equation: Any) -> bool:
    """Whether an equation copies one array from the host to the device."""
    if equation.primitive.name != "device_put" or len(equation.invars) != 1:
        return False
    (place,) = equation.params["devices"]
    return getattr(place, "memory_kind", HOST) != HOST


def _casts(equation: Any) -> bool:
    """Whether an equation makes a copy of an array in another dtype."""
    if equation.primitive.name != "convert_element_type":
        return False
    (before,), (after,) = equation.invars, equation.outvars
    return not isinstance(before, Literal) and bool(before.aval.dtype != after.aval.dtype)


def _is_read_by_loop(equation: Any, position: int) -> bool:
    """Whether the body of a loop reads a value that it does not carry."""
    if equation.primitive.name == "scan":
        layout = scan_inputs(equation.params)
        return not layout.constants <= position < layout.constants + layout.carried
    if equation.primitive.name == "while":
        first = equation.params["cond_nconsts"]
        return bool(first <= position < first + equation.params["body_nconsts"])
    return False


def _scanned(equation: Any, values: list[Any], late: dict[int, Any]) -> list[Any]:
    """The outputs of a scan that does some equations for itself in each step."""
    params, layout = equation.params, scan_inputs(equation.params)
    constants = layout.constants
    first = constants + layout.carried
    body = jaxpr_as_fun(params["jaxpr"])

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = [*values[:constants], *carry, *xs]
        for i, done in late.items():
            # Without a barrier XLA would do it once, in front of the loop.
            own = inputs[i] if i >= first else _held_back(inputs[i], carry)
            inputs[i] = _done(done, own, is_slice=i >= first)
        made = body(*inputs)
        return made[: layout.carried], made[layout.carried :]

    final, stacked = jax.lax.scan(
        step,
        values[constants:first],
        values[first:],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*final, *stacked]


def _repeated(equation: Any, values: list[Any], late: dict[int, Any]) -> list[Any]:
    """The outputs of a while loop that does some equations for itself in each step."""
    params = equation.params
    tests, first = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    test, body = jaxpr_as_fun(params["cond_jaxpr"]), jaxpr_as_fun(params["body_jaxpr"])

    def step(carry: list[Any]) -> list[Any]:
        inputs = list(values[:first])
        for i, done in late.items():
            inputs[i] = _done(done, _held_back(inputs[i], carry), is_slice=False)
        return list(body(*inputs[tests:], *carry))

    while_loop: Any = jax.lax.while_loop
    return list(while_loop(lambda carry: test(*values[:tests], *carry)[0], step, values[first:]))


def _held_back(array: Any, carry: list[Any]) -> Any:
    """The array, as a value that seems to depend on the step of the loop."""
    return jax.lax.optimization_barrier((array, carry))[0]


def _done(equation: Any, array: Any, *, is_slice: bool) -> Any:
    """What an equation that fetches or casts does, of a whole array or of a slice of it."""
    if not _fetches(equation):
        return jax.lax.convert_element_type(array, equation.outvars[0].aval.dtype)
    (place,) = equation.params["devices"]
    if is_slice and isinstance(place, NamedSharding):
        spec = PartitionSpec(*tuple(place.spec)[1:])
        place = NamedSharding(place.mesh, spec, memory_kind=place.memory_kind)
    return jax.device_put(array, place)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    moved = list(_moved(call.jaxpr.jaxpr).values())
    if not moved:
        raise NothingToChange(_NOTHING)
    lines = tuple(dict.fromkeys(filter(None, map(line_of, moved))))
    casts = [equation for equation in moved if not _fetches(equation)]
    parts = []
    if len(moved) > len(casts):
        parts.append(f"fetching {plural(len(moved) - len(casts), 'array')} from the host")
    if casts:
        dtype = jnp.dtype(casts[0].outvars[0].aval.dtype).name
        parts.append(f"casting {plural(len(casts), 'array')} to {dtype}")
    what = " and ".join(parts)
    yield InLoop(
        what=f"{what} in the body of the loop",
        code=f"move this from before the loop into its body: {what}"
        + (f" ({', '.join(lines[:3])})" if lines else ""),
        where=lines,
    )


IN_LOOP = Change(
    "in-loop",
    "B",
    "the same values: the loop fetches or casts in each step what it reads in that step",
    _edits,
)
