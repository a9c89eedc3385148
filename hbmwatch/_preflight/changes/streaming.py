"""What a scan stacks, sent to its place slice by slice, so that the stack is never whole here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._jax import replay
from hbmwatch._jax.scans import scan_inputs


def streamed(closed: Any, args: Sequence[Any], places: Mapping[int, Any]) -> list[Any]:
    """The outputs of a jaxpr; those that a scan of it stacks are sent away in slices.

    Args:
        closed: The closed jaxpr.
        args: Its arguments.
        places: The shardings of some outputs, by their numbers.
    """
    jaxpr = closed.jaxpr
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
    wanted = {
        v: places[o]
        for o, v in enumerate(jaxpr.outvars)
        if o in places and not isinstance(v, Literal)
    }

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        sent = {i: wanted[v] for i, v in enumerate(equation.outvars) if v in wanted}
        if equation.primitive.name == "scan" and sent:
            outputs = _scanned(equation, values, sent)
        else:
            outputs = replay.bind(equation, values, {})
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scanned(equation: Any, values: list[Any], places: Mapping[int, Any]) -> list[Any]:
    """The outputs of a scan whose body sends the slices of some of them away."""
    params, inputs = equation.params, scan_inputs(equation.params)
    constants, carried = inputs.constants, inputs.carried
    body = jaxpr_as_fun(params["jaxpr"])
    slices = {o: _of_a_slice(sharding) for o, sharding in places.items() if o >= carried}

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        made = body(*values[:constants], *carry, *xs)
        moved = [
            jax.device_put(array, slices[o]) if o in slices else array
            for o, array in enumerate(made)
        ]
        return moved[:carried], moved[carried:]

    final, stacked = jax.lax.scan(
        step,
        values[constants : constants + carried],
        values[constants + carried :],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*final, *stacked]


def _of_a_slice(sharding: Any) -> Any:
    """The sharding of one slice of a stack."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    spec = PartitionSpec(*tuple(sharding.spec)[1:])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
