"""Shard outputs: as the arguments that they replace, or over the devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange, names
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits

_LARGE_BYTES = 1 << 16

Placement = tuple[int, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOutputs(Edit):
    """Outputs with the entries of their new PartitionSpecs."""

    placements: tuple[Placement, ...]

    def on(self, call: Call) -> Call:
        """The call with these out_shardings."""
        if call.mesh is None:
            raise NothingToChange("the step is not on a mesh of several devices")
        return call.with_outputs(
            {
                o: call.outputs[o].at(NamedSharding(call.mesh, PartitionSpec(*entries)))
                for o, entries in self.placements
            }
        )


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    if call.mesh is None:
        raise NothingToChange("the step is not on a mesh of several devices")
    own, spread = _as_arguments(call), _over_devices(call)
    if not own and not spread:
        raise NothingToChange("no large output can be sharded further")
    if own:
        leaves = [call.outputs[o] for o, _ in own]
        yield ShardOutputs(
            what=f"giving {names(leaves)} the shardings of the arguments that they replace",
            code=f"set the out_shardings of {names(leaves)} to the shardings of the arguments",
            placements=own,
        )
    if spread:
        leaves = [call.outputs[o] for o, _ in spread]
        spec = ", ".join(map(repr, spread[0][1]))
        yield ShardOutputs(
            what=f"sharding {names(leaves)} over the devices",
            code="set out_shardings to NamedSharding(mesh, PartitionSpec("
            f"{spec})) for {leaves[0].path}"
            + (f", and likewise for {len(leaves) - 1} more" if len(leaves) > 1 else ""),
            placements=(*own, *spread),
        )


def _as_arguments(call: Call) -> tuple[Placement, ...]:
    """Outputs that replace an argument, and have been given more memory than it on a device."""
    found = []
    for i, o in call.updated().items():
        argument, output = call.arguments[i], call.outputs[o]
        if output.nbytes < _LARGE_BYTES or not isinstance(argument.sharding, NamedSharding):
            continue
        given = argument.sharding.shard_shape(argument.shape.shape)
        if output.sharding is None or math.prod(given) < math.prod(
            output.sharding.shard_shape(output.shape.shape)
        ):
            found.append((o, tuple(argument.sharding.spec)))
    return tuple(sorted(found))


def _over_devices(call: Call) -> tuple[Placement, ...]:
    """Large outputs that replace no argument and that each device holds in full."""
    replaced = set(call.updated().values())
    axes = tuple(name for name in call.mesh.axis_names if call.mesh.shape[name] > 1)
    parts, found = call.mesh.size, []
    for o, output in enumerate(call.outputs):
        whole = output.sharding is None or output.sharding.is_fully_replicated
        fitting = [d for d, n in enumerate(output.shape.shape) if n >= parts and n % parts == 0]
        if o in replaced or not whole or not fitting or output.nbytes < _LARGE_BYTES:
            continue
        largest = max(fitting, key=lambda d: output.shape.shape[d])
        entry = axes if len(axes) > 1 else axes[0]
        entries = tuple(entry if d == largest else None for d in range(len(output.shape.shape)))
        found.append((o, entries))
    return tuple(found)


OUTPUT_SHARDING = Change(
    "output-sharding",
    "A",
    "the same values up to rounding: sums over several devices add up in another order",
    _edits,
)
