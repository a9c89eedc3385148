"""Gradients of all layers, or their sum over micro-batches: as large as the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import elements
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._analysis.reach import reached
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import float_bits

_AT_ONCE = (
    "If the update does not wait for all gradients, as a clip by their global norm does, apply it "
    "inside of the backward pass: scan over the layers in reverse, carry the parameters (and "
    "moments) through the scan, take jax.vjp of one layer, and write the updated layer back with "
    "jax.lax.dynamic_update_index_in_dim. Then the gradients of one layer exist at a time. Or "
    "shard parameters and gradients over more devices (FSDP)."
)
_SHARD = "Shard parameters and gradients over more devices (FSDP)."
_RETURNED = f"{_SHARD} The gradients are results of the program, which makes no update of them."
_REDUCED = (
    f"{_SHARD} A reduction over the gradients of all layers feeds the update, as for a clip by "
    "their global norm, so the update cannot be applied layer by layer inside of the backward pass."
)


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change where a loop adds gradients up, too."""
    stacks = [candidate for candidate in found if not is_sum(candidate)]
    remedy = _AT_ONCE
    if stacks and all(map(_is_returned, stacks)):
        remedy = _RETURNED
    elif any(map(_feeds_through_a_sum, stacks)):
        remedy = _REDUCED
    return remedy + (f" {SUM_ADVICE.remedy}" if len(stacks) < len(found) else "")


def _is_returned(candidate: Candidate) -> bool:
    """Whether gradients are results, and no argument of their form is returned updated."""
    facts, first = candidate.facts, candidate.first
    updated = {a.dims for a in facts.arguments if a.number in facts.state}
    return facts.buffers.is_result(first) and first.dims not in updated


def _feeds_through_a_sum(candidate: Candidate) -> bool:
    """Whether all gradients of a stack are reduced to one number, and it is used with them again.

    As by a clip by the global norm: it scales each gradient by a number that needs all of them.
    """
    filled = candidate.first.loop_buffer
    if filled is None:
        return False
    graph = candidate.facts.buffers.graph
    readers = candidate.facts.buffers.loop_buffers.readers(filled)
    others = {reader.id for reader in readers}
    numbers = [
        made
        for reader in readers
        for made in (graph.users(reader) if reader.shape.tuple_shapes else [reader])
        if elements(made.shape) == 1 and graph.root(made).opcode == "reduce"
    ]
    others -= {number.id for number in numbers}
    return any(found in others for found in reached(graph, numbers))


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
    remedy=_AT_ONCE,
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
