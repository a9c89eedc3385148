"""What a scan stacks, sent to its place slice by slice, so that the stack is never whole here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._jax import replay
from hbmwatch._jax.scans import scan_inputs


def streamed(closed: Any, args: Sequence[Any], places: Mapping[int, Any]) -> list[Any]:
    """The outputs of a jaxpr, some of them sent away; what a scan of it stacks, in slices.

    Args:
        closed: The closed jaxpr.
        args: Its arguments.
        places: The shardings of some outputs, by their numbers.
    """
    slices = _slices(closed.jaxpr, places)

    def step(equation: Any, values: list[Any]) -> Sequence[Any]:
        sent = {i: slices[v] for i, v in enumerate(equation.outvars) if v in slices}
        if equation.primitive.name == "scan" and sent:
            return _scanned(equation, values, sent)
        return replay.bind(equation, values, {})

    made = replay.evaluated(closed, args, step)
    return [
        jax.device_put(array, places[o]) if o in places else array for o, array in enumerate(made)
    ]


def _slices(jaxpr: Any, places: Mapping[int, Any]) -> dict[Any, Any]:
    """The stacks that are outputs and nothing else, with the shardings of their slices.

    A stack of blocks may also become an output by a reshape that puts the blocks together.
    """
    uses = Counter(
        v
        for atoms in (jaxpr.outvars, *(equation.invars for equation in jaxpr.eqns))
        for v in atoms
        if not isinstance(v, Literal)
    )
    outputs = {
        v: places[o]
        for o, v in enumerate(jaxpr.outvars)
        if o in places and not isinstance(v, Literal) and uses[v] == 1
    }
    slices = {v: _of_a_slice(sharding) for v, sharding in outputs.items()}
    for equation in jaxpr.eqns:
        (out, *_), (source, *_) = equation.outvars or [None], equation.invars or [None]
        if equation.primitive.name == "reshape" and out in outputs and uses[source] == 1:
            if _joins_blocks(source.aval.shape, out.aval.shape) and not _is_cut(outputs[out]):
                slices[source] = outputs[out]
    return slices


def _joins_blocks(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a reshape makes one dimension of the first two."""
    return tuple(before[2:]) == tuple(after[1:]) and len(before) == len(after) + 1


def _is_cut(sharding: Any) -> bool:
    """Whether the first dimension is split over several devices."""
    return isinstance(sharding, NamedSharding) and bool(
        tuple(sharding.spec)[:1] not in ((), (None,))
    )


def _of_a_slice(sharding: Any) -> Any:
    """The sharding of one slice of a stack."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    spec = PartitionSpec(*tuple(sharding.spec)[1:])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _scanned(equation: Any, values: list[Any], slices: Mapping[int, Any]) -> list[Any]:
    """The outputs of a scan whose body sends the slices of some of them away."""
    params, inputs = equation.params, scan_inputs(equation.params)
    constants, carried = inputs.constants, inputs.carried
    body = jaxpr_as_fun(params["jaxpr"])

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        made = body(*values[:constants], *carry, *xs)
        moved = [
            jax.device_put(array, slices[o]) if o in slices and o >= carried else array
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
