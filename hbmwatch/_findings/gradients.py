"""Gradients of all layers, or their sum over micro-batches: as large as the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import float_bits

_AT_ONCE = (
    "Apply the update inside of the backward pass: scan over the layers in reverse, carry the "
    "parameters (and moments) through the scan, take jax.vjp of one layer, and write the updated "
    "layer back with jax.lax.dynamic_update_index_in_dim. Then the gradients of one layer exist at "
    "a time. This update cannot wait for all gradients, as a clip by their global norm does. Or "
    "shard parameters and gradients over more devices (FSDP)"
)


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change where a loop adds gradients up, too."""
    return f"{_AT_ONCE}." + (f" {SUM_ADVICE.remedy}" if any(map(is_sum, found)) else "")


def _freed(found: Sequence[Candidate]) -> int:
    """The bytes of all layers but one, or half of a sum in float32."""
    freed = 0
    for candidate in found:
        size = sum(live.size_bytes for live in candidate.buffers)
        filled = candidate.first.loop_buffer
        if filled is not None:
            freed += size - size // filled.length
        elif float_bits(candidate.first.element_type) == 32:
            freed += size // 2
    return freed


ADVICE = BufferAdvice(
    slug="gradients",
    prior_weight=0.9,
    title="All gradients exist at once{at}, beside the parameters, which are as large",
    remedy=f"{_AT_ONCE}.",
    remedy_for=_remedy,
    freed_for=_freed,
    link="https://github.com/jax-ml/jax/issues/30338",
    will_not_help="jax.checkpoint, donation or a smaller batch: gradients are as large as the "
    "parameters",
    without_batch="jax.checkpoint or donation: gradients are as large as the parameters",
    reads_origin=False,
)
SUM_ADVICE = dataclasses.replace(
    ADVICE,
    title="A loop carries the sum of the gradients{at}, which is as large as the parameters",
    remedy="Keep the sum of the gradients in bfloat16, if that precision is enough, or shard it "
    "with the parameters over more devices (FSDP).",
    remedy_for=None,
)


def is_stacked(candidate: Candidate) -> bool:
    """Whether the backward pass of a scan stacks a buffer: the gradients of its xs."""
    filled = candidate.first.loop_buffer
    if filled is None or filled.from_argument or not is_backward(candidate.first.context):
        return False
    return candidate.first.dims in candidate.facts.once(_parameters)


def is_sum(candidate: Candidate) -> bool:
    """Whether a loop carries a buffer, and adds a gradient to it in each step."""
    first = candidate.first
    if first.op.kind != "temporary" or first.loop_buffer is not None:
        return False
    if first.dims not in candidate.facts.once(_parameters):
        return False
    graph = candidate.facts.buffers.graph
    made = candidate.facts.buffers.loop_buffers.replaced(first.instruction)
    if made is None:
        return False
    inside = (made, *graph.everything_in(made))
    adds = any(instruction.opcode == "add" for instruction in inside)
    return adds and any(is_backward(instruction.metadata.op_name) for instruction in inside)


def _parameters(facts: ProgramFacts) -> frozenset[tuple[int, ...]]:
    """The dimensions of the arguments that are returned updated, or whose gradients are."""
    batch = {argument.number for argument in facts.batch.arguments}
    return frozenset(
        a.dims
        for a in facts.arguments
        if a.dims
        and float_bits(a.element_type)
        and a.number not in batch
        and (a.number in facts.state or a.dims in facts.gradients)
    )
