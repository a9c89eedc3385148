"""Sharded arguments that the compiler gathers into a full copy on every device."""

from __future__ import annotations

import math

from hbmwatch._analysis.facts import Argument, ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.phrases import SHARDING, at_lines, list_some, plural
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.shardings import is_replicated

ADVICE = Advice(
    slug="gather",
    prior_weight=3.0,
    link=SHARDING,
    will_not_help="jax.checkpoint: it gathers the full copy again",
)
# A sharded state is gathered leaf by leaf, and many copies reach the minimum together.
LEAST_SHARE_OF_MINIMUM = 1 / 8


def find(facts: ProgramFacts) -> Finding | None:
    """Temporaries that hold a full sharded argument on each device."""
    if facts.device_count < 2:
        return None
    returned = {o.dims for o in facts.outputs if is_replicated(o.sharding, len(o.dims))}
    copies = [
        (live, argument)
        for live in facts.live
        if live.dims not in returned and (argument := _gathered(facts, live)) is not None
    ]
    buffers = [live for live, _ in copies]
    total = all_bytes(buffers)
    if total < facts.minimum_saving_bytes:
        return None
    largest, argument = max(copies, key=lambda copy: copy[0].size_bytes)
    shards = max(math.prod(argument.tiles), 2)
    paths = list_some(a.path for _, a in copies)
    return ADVICE.finding(
        title=f"Keep {argument.path} sharded{at_lines(buffers)}: the compiler all-gathers the full "
        "array on every device",
        evidence=f"{plural(len(copies), 'buffer')} ({format_size(total)}) on each of "
        f"{facts.device_count} devices: all of {paths} {list(argument.global_dims)}. "
        f"{_describe(largest)}",
        remedy="Keep it sharded, so that no all-gather is needed: do not index, permute or scan "
        "along the sharded axis (shard another dimension, use shard_map, or apply "
        "jax.lax.with_sharding_constraint to the result).",
        saves_bytes=total - total // shards,
    )


def _describe(live: LiveBuffer) -> str:
    """Which instruction makes the full copy."""
    name = live.name or "an operation"
    if live.op.opcode.startswith("all-"):
        return f"The partitioner inserted {live.op.opcode} for {name}."
    return f"The largest is the result of a {live.op.opcode} for {name}."


def _gathered(facts: ProgramFacts, live: LiveBuffer) -> Argument | None:
    """The sharded argument that a temporary holds in full; None where it holds none."""
    least = LEAST_SHARE_OF_MINIMUM * facts.minimum_saving_bytes
    if live.op.kind not in ("temporary", "output") or live.size_bytes < least:
        return None
    whole = sorted(size for size in live.dims if size > 1)
    sharded = [a for a in facts.arguments if math.prod(a.tiles) > 1]
    for argument in sharded:
        if whole == sorted(size for size in argument.global_dims if size > 1):
            return argument
    if live.op.opcode.startswith("all-gather"):
        path = facts.buffers.argument_of(live.instruction)
        return next((argument for argument in sharded if argument.path == path), None)
    return None
