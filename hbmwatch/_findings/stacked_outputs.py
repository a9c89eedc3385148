"""A result of a scan that is stacked over all its steps, or a buffer that a loop carries."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import Parameter
from hbmwatch._analysis.live_buffers import LiveBuffer, is_backward
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_SCAN, at_line
from hbmwatch._findings.random_bits import RETURNED, is_drawn
from hbmwatch._records.text import clean


def _line(found: Sequence[Candidate]) -> str:
    """The line of the scan, which is not that of the value that it stacks."""
    largest = max(found, key=lambda c: c.first.size_bytes)
    filled = largest.first.loop_buffer
    line = largest.facts.buffers.line_of(filled.loop) if filled is not None else ""
    return f" at {clean(line, 60)}" if line else at_line(largest.buffers)


def _computed(live: LiveBuffer, facts: ProgramFacts) -> str:
    """Where the value that is stacked is computed, unless at the line of the scan."""
    filled = live.loop_buffer
    line = facts.buffers.line_of(filled.loop) if filled is not None else ""
    elsewhere = live.source if line and live.source != line else ""
    return f", computed at {clean(elsewhere, 60)}" if elsewhere else ""


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change: nothing reduces weights that a scan draws layer by layer."""
    largest = max(found, key=lambda c: c.first.size_bytes)
    returned = largest.facts.buffers.is_result(largest.first)
    return RETURNED if returned and is_drawn(largest) else ADVICE.remedy


ADVICE = BufferAdvice(
    slug="stacked-outputs",
    prior_weight=1.8,
    title="A scan stacks its outputs over all steps{at}",
    remedy="Return from the scan only what is needed (the last state, a running mean, every n-th "
    "step): the second output of the body is stacked over all steps. If all steps are needed, "
    "shard them, keep them in a narrower dtype, or call the scan for some steps at a time.",
    remedy_for=_remedy,
    link=LAX_SCAN,
    will_not_help="donation or jax.checkpoint: this buffer is the result of the scan",
    reads_origin=False,
    line_for=_line,
    detail=_computed,
)

_CARRY = "Carry the array through the scan and update it in place: the carry is (x, cache), the xs "
_CARRY += "have the index of the layer, and the body uses jax.lax.dynamic_update_index_in_dim."


def _carry(found: Sequence[Candidate]) -> str:
    """What to change; the argument may be donated already."""
    facts = found[0].facts
    donors = {donor.parameter_number for donor in facts.program.donors}
    donors |= {a.number for a in facts.arguments if a.aliased or (a.leaf and a.leaf.donated)}
    read = {p.number for candidate in found for p in _read_as_xs(candidate)}
    return _CARRY if read <= donors else CARRY_ADVICE.remedy


CARRY_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="A scan reads an argument as xs and returns its next value as ys, so both exist{at}",
    remedy=f"{_CARRY} Donate the argument, so that the carry reuses its memory.",
    remedy_for=_carry,
    link=LAX_SCAN,
    will_not_help="donation alone: the scan writes its second output to a buffer of its own",
    reads_origin=False,
    line_for=_line,
    detail=_computed,
)

STATE_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="A loop carries a large buffer and writes parts of it{at}",
    remedy="Make the buffer smaller (fewer entries, a narrower dtype) or shard it. If it collects "
    "what each step computes, keep a running mean or every n-th step instead, or call the loop for "
    "some steps at a time and move the results to host memory.",
    link=LAX_SCAN,
    will_not_help="donation or jax.checkpoint: the buffer is created in the program, and the loop "
    "carries all of it",
    reads_origin=False,
    line_for=_line,
    detail=_computed,
    counts_steps=False,
)


# How op_names call the function of a scan: in jax 0.10, and in jax 0.12.
_CALLS = ("closed_call/", "eval_jaxpr/")


def is_carried(candidate: Candidate) -> bool:
    """Whether the function that a loop calls writes the buffer: the loop carries it.

    A scan writes its ys outside of the call of that function, by dynamic_update_slice.
    """
    filled = candidate.first.loop_buffer
    if filled is None or filled.by_compiler:
        return False
    write = candidate.facts.buffers.graph.root(filled.update).metadata.op_name
    _, body, inside = write.rpartition("/body/")
    scatters = inside.rpartition("/")[2].startswith("scatter")
    return bool(body) and (scatters or inside.startswith(_CALLS))


def is_updated_input(candidate: Candidate) -> bool:
    """Whether a loop writes the next value of an argument that it reads slice by slice."""
    first = candidate.first
    if first.loop_buffer is None or first.loop_buffer.from_argument or is_backward(first.context):
        return False
    if first.loop_buffer.by_compiler:
        return False
    return bool(_read_as_xs(candidate))


def _read_as_xs(candidate: Candidate) -> list[Parameter]:
    """The arguments of the buffer's form that enter the loop that fills it."""
    first, graph = candidate.first, candidate.facts.buffers.graph
    start = graph.first(first.loop_buffer.loop) if first.loop_buffer is not None else None
    enters = graph.operands(start) if start is not None else []
    read = {source_of(graph, value).id for value in enters}
    return [
        p
        for p in graph.parameters
        if p.dims == first.dims
        and p.element_type == first.element_type
        and p.instruction.id in read
    ]


def is_loop_state(candidate: Candidate) -> bool:
    """Whether a loop updates an argument or a gradient in place: an ordinary buffer."""
    filled = candidate.first.loop_buffer
    if filled is None:
        return False
    return filled.from_argument or is_backward(candidate.first.context)


def is_stacked(candidate: Candidate) -> bool:
    """Whether a loop of the user fills the buffer, one slice per step.

    The compiler makes loops of its own, which have no op_name, or that of another operation.
    """
    filled = candidate.first.loop_buffer
    if filled is None or filled.by_compiler:
        return False
    return "/while" in f"{filled.context} {candidate.first.name}"
