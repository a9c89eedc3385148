"""Sharded arrays that the compiler gathers into a full copy on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import elements
from hbmwatch._analysis.leaves import Argument
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings import callback
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import SHARDING, at_lines, list_some
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.shardings import is_replicated

PRIOR_WEIGHT = 3.0
# Tensor-parallel layers gather activations, and FSDP one layer's weights, on purpose.
PART_WEIGHT = 0.8


def _weigh(facts: ProgramFacts, finding: Finding) -> float:
    """The weight: lower where what is gathered is computed, or a part of an argument."""
    return PART_WEIGHT if finding.title.startswith(_PART) else PRIOR_WEIGHT


ADVICE = Advice(
    slug="gather",
    prior_weight=PRIOR_WEIGHT,
    link=SHARDING,
    will_not_help="jax.checkpoint: it gathers the full copy again",
    weigh=_weigh,
)
_PART = "The compiler all-gathers a "
# A sharded state is gathered leaf by leaf, and many copies reach the minimum together.
LEAST_SHARE_OF_MINIMUM = 1 / 8
_OF_VALUE = (
    "Use it as it is sharded: in a tensor-parallel layer, shard the next weight along the "
    "dimension that is summed over; elsewhere apply jax.lax.with_sharding_constraint to the result "
    "of the operation that needs it in full, or use jax.shard_map."
)
_OF_PART = (
    "If it is one layer of several, gather one layer at a time (jax.lax.scan over the "
    "layers); otherwise shard another dimension, so that the operation needs no all-gather."
)
_OF_RESULT = (
    "The program returns it with fewer shards than it is computed with. Return it as it is sharded "
    "(out_shardings, or jax.lax.with_sharding_constraint on the result)."
)
# Between the rows and the all-reduce are a cast and a copy.
MOST_MOVES = 4


class Copy(NamedTuple):
    """A buffer that holds on one device what belongs to several.

    Attributes:
        live: The buffer.
        argument: The sharded argument whose values it holds; None where they are computed.
        collective: The instruction that brings them to each device.
        source: The instruction whose result the collective gathers.
    """

    live: LiveBuffer
    argument: Argument | None
    collective: HloInstructionProto
    source: HloInstructionProto

    @property
    def selects_rows(self) -> bool:
        """Whether the devices add up rows that an index selects, instead of an all-gather."""
        return self.collective.opcode.startswith("all-reduce")

    @property
    def is_whole(self) -> bool:
        """Whether the collective makes the whole of an argument, and no part of it."""
        if self.argument is None or self.selects_rows:
            return False
        return elements(self.collective.shape) >= element_count(self.argument.global_dims)


def find(facts: ProgramFacts) -> Finding | None:
    """Buffers that hold a sharded array in full on each device."""
    if facts.device_count < 2:
        return None
    returned = {o.dims for o in facts.outputs if is_replicated(o.sharding, len(o.dims))}
    found = copies(facts)
    kept = [copy for copy in found if copy.live.dims not in returned]
    whole = [copy for copy in kept if copy.is_whole]
    selected = [copy for copy in kept if copy.selects_rows]
    parts = [copy for copy in kept if not (copy.is_whole or copy.selects_rows)]
    kinds = ((whole, _whole), (selected, _selected), (parts, _parts))
    least = facts.minimum_saving_bytes
    made = [make(facts, same) for same, make in kinds if all_bytes([c.live for c in same]) >= least]
    return max(made, key=lambda finding: finding.saves_bytes or 0, default=None)


def copies(facts: ProgramFacts) -> list[Copy]:
    """The buffers at the peak that hold a sharded array, or rows of it, for all devices."""
    least = LEAST_SHARE_OF_MINIMUM * facts.minimum_saving_bytes
    large = [live for live in facts.live if live.size_bytes >= least]
    # What is gathered for a callback has a finding that says so.
    temporaries = (
        live
        for live in large
        if live.op.kind in ("temporary", "output")
        and not callback.is_sent_to_host(Candidate(facts, [live]))
    )
    return [copy for live in temporaries if (copy := _copy(facts, live)) is not None]


def _copy(facts: ProgramFacts, live: LiveBuffer) -> Copy | None:
    """What a buffer holds for all devices; None where it holds nothing of others."""
    graph = facts.buffers.graph
    for end in facts.buffers.origin(live).ends:
        operand = graph.first(end.instruction)
        if operand is None:
            continue
        if end.instruction.opcode.startswith("all-gather"):
            source = source_of(graph, operand, end.outer)
            return Copy(live, _argument_of(facts, source), end.instruction, source)
        if end.instruction.opcode == "gather":
            summed = _summed(facts, live)
            source = source_of(graph, operand, end.outer)
            argument = _argument_of(facts, source)
            if summed is not None and argument is not None and math.prod(argument.tiles) > 1:
                return Copy(live, argument, summed, source)
    return None


def _summed(facts: ProgramFacts, live: LiveBuffer) -> HloInstructionProto | None:
    """The all-reduce that made a buffer, or that reads it, of as many elements; None without."""
    graph, count = facts.buffers.graph, element_count(live.dims)
    near = [live.instruction, *facts.buffers.readers(live)]
    current: HloInstructionProto | None = live.instruction
    for _ in range(MOST_MOVES):
        current = graph.first(current) if current is not None else None
        near += [current] if current is not None else []
    alike = (i for i in near if i.opcode.startswith("all-reduce") and elements(i.shape) == count)
    return next(alike, None)


def _argument_of(facts: ProgramFacts, source: HloInstructionProto) -> Argument | None:
    """The argument that an instruction is; None where it is none."""
    number = facts.buffers.graph.argument_ids.get(source.id)
    return next((a for a in facts.arguments if a.number == number), None)


# --- wording --------------------------------------------------------------------------------------


def _whole(facts: ProgramFacts, gathered: Sequence[Copy]) -> Finding:
    """The finding on arguments that are all-gathered as a whole."""
    buffers = [copy.live for copy in gathered]
    total = all_bytes(buffers)
    largest = max(gathered, key=lambda copy: copy.live.size_bytes)
    argument = largest.argument
    assert argument is not None
    copied = sorted(gathered, key=lambda copy: -copy.live.size_bytes)
    paths = list_some(copy.argument.path for copy in copied if copy.argument is not None)
    return ADVICE.finding(
        title=f"Keep {argument.path} sharded{at_lines(buffers)}: the compiler all-gathers the full "
        "array on every device",
        evidence=f"{plural(len(gathered), 'buffer')} ({format_size(total)}) on each of "
        f"{facts.device_count} devices: all of {paths} {list(argument.global_dims)}. "
        f"{_describe(largest)}",
        remedy="Keep it sharded, so that no all-gather is needed: do not index, permute or scan "
        "along the sharded axis (shard another dimension, use shard_map, or apply "
        "jax.lax.with_sharding_constraint to the result).",
        saves_bytes=_freed(facts, gathered),
        buffers=buffers,
    )


def _selected(facts: ProgramFacts, gathered: Sequence[Copy]) -> Finding:
    """The finding on rows of a sharded argument that a computed index selects."""
    buffers = [copy.live for copy in gathered]
    largest = max(gathered, key=lambda copy: copy.live.size_bytes)
    path = largest.argument.path if largest.argument is not None else ""
    shape = largest.live.op.shape.partition("{")[0]
    return ADVICE.finding(
        title=f"Every device holds the rows of {path} for all devices{at_lines(buffers)}: an index "
        "selects them along the sharded axis",
        evidence=f"{plural(len(gathered), 'buffer')} ({format_size(all_bytes(buffers))}) on each "
        f"of {facts.device_count} devices. The largest is {shape}, not sharded: each device "
        f"selects the rows that it has of {path}, and an all-reduce adds them up.",
        remedy="Select rows within each shard only (permute or sort inside jax.shard_map; for "
        "mixture-of-experts, exchange tokens with all_to_all), or shard the index and the result "
        "with jax.lax.with_sharding_constraint.",
        saves_bytes=_freed(facts, gathered),
        buffers=buffers,
        will_not_help="jax.checkpoint: it selects the rows for all devices again",
    )


def _parts(facts: ProgramFacts, gathered: Sequence[Copy]) -> Finding:
    """The finding on what is gathered, but not a whole argument: an activation, a slice."""
    buffers = [copy.live for copy in gathered]
    largest = max(gathered, key=lambda copy: copy.live.size_bytes)
    shape = largest.live.op.shape.partition("{")[0]
    made = facts.buffers.line_of(largest.source)
    source = f"a sharded value computed at {made}" if made else "a sharded value"
    what, remedy = "computed value", _OF_VALUE
    if any(b.op.kind == "output" and b.dims == largest.live.dims for b in buffers):
        remedy = _OF_RESULT
    if largest.argument is not None:
        source, remedy = f"a part of {largest.argument.path}", _OF_PART
        what = source.removeprefix("a ")
    return ADVICE.finding(
        title=f"{_PART}{what}{at_lines(buffers)}",
        evidence=f"{plural(len(gathered), 'buffer')} ({format_size(all_bytes(buffers))}) on each "
        f"of {facts.device_count} devices. The largest is {shape}, gathered from {source} for "
        f"{largest.live.name or 'an operation'}.",
        remedy=remedy,
        saves_bytes=_freed(facts, gathered),
        buffers=buffers,
    )


def _freed(facts: ProgramFacts, gathered: Sequence[Copy]) -> int:
    """The bytes of the other devices in these buffers."""
    return sum(
        copy.live.size_bytes - copy.live.size_bytes // max(_shards(facts, copy), 2)
        for copy in gathered
    )


def _shards(facts: ProgramFacts, copy: Copy) -> int:
    """How many devices' parts a buffer holds."""
    if copy.selects_rows:
        return math.prod(copy.argument.tiles) if copy.argument is not None else 2
    operand = facts.buffers.graph.first(copy.collective)
    whole, part = elements(copy.collective.shape), elements(operand.shape) if operand else 0
    return whole // part if part else 2


def _describe(copy: Copy) -> str:
    """Which instruction makes the full copy."""
    name = copy.live.name or "an operation"
    if copy.live.op.opcode.startswith("all-"):
        return f"The partitioner inserted {copy.live.op.opcode} for {name}."
    return f"The largest is the result of a {copy.live.op.opcode} for {name}."
