"""A second copy of an argument, in another layout."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.shapes import shape_text


def _order(live: LiveBuffer, facts: ProgramFacts) -> str:
    """The order of the dimensions of the copy, and that of the argument, major first."""
    source = source_of(facts.buffers.graph, live.instruction)
    theirs = tuple(reversed(source.shape.layout.minor_to_major))
    layout = re.search(r"\{([\d,]+)", live.op.shape)
    ours = tuple(reversed([int(i) for i in layout[1].split(",")])) if layout else ()
    if len(ours) != len(theirs) or ours == theirs:
        return ""
    return f", with its dimensions in the order {ours} instead of {theirs}"


def _freed(found: Sequence[Candidate]) -> int:
    """The bytes that one layout frees: the argument, or the copy where that is smaller.

    The argument then takes what the copy takes now, padding included.
    """
    arguments = {a.number: a.size_bytes for a in found[0].facts.arguments}
    total = 0
    for candidate in found:
        number = _number(candidate)
        for live in candidate.buffers:
            total += min(live.size_bytes, arguments.get(number, live.size_bytes))
    return total


def _number(candidate: Candidate) -> int:
    """The number of the argument that a buffer is a copy of; -1 where it is not known."""
    graph = candidate.facts.buffers.graph
    return graph.argument_ids.get(source_of(graph, candidate.first.instruction).id, -1)


ADVICE = BufferAdvice(
    slug="layout-copy",
    prior_weight=1.7,
    title="The compiler keeps a second copy of an argument in another layout{at}",
    remedy="Store the argument in the layout that the program uses (transpose it once, before the "
    "call), or let jit choose it with jax.experimental.layout (Format, Layout.AUTO).",
    link="https://docs.jax.dev/en/latest/jax.experimental.layout.html",
    will_not_help="donation: both copies are needed while the program runs",
    names_argument=True,
    even_if_padded=True,
    freed_for=_freed,
    detail=_order,
)
_MEMORY_SPACE = re.compile(r":S\(\d+\)(?=})|S\(\d+\)")
_ONLY_MOVES = frozenset(
    "parameter copy transpose bitcast reshape fusion copy-start copy-done".split()
)


def is_copied_state(candidate: Candidate) -> bool:
    """Whether a loop updates a copy of an argument in place, as its own layout does not fit."""
    first = candidate.first
    if first.loop_buffer is None or first.instruction.opcode not in ("copy", "transpose"):
        return False
    if first.op.kind != "temporary" or not _keeps_type(candidate):
        return False
    source = source_of(candidate.facts.buffers.graph, first.instruction)
    is_argument = candidate.facts.buffers.graph.is_argument(source)
    return (
        is_argument
        and _is_reused(candidate)
        and _layout(first.op.shape) != _layout(shape_text(source.shape))
    )


def is_moved_argument(candidate: Candidate) -> bool:
    """Whether a temporary is an argument that was only moved."""
    if candidate.first.op.kind != "temporary" or not candidate.is_argument:
        return False
    if not _keeps_type(candidate) or not _has_dimensions(candidate):
        return False
    if _is_rewritten(candidate) and not _is_reused(candidate):
        return False
    shapes = {_layout(shape_text(end.instruction.shape)) for end in candidate.origin.ends}
    return candidate.origin.chain <= _ONLY_MOVES and _layout(candidate.first.op.shape) not in shapes


def _keeps_type(candidate: Candidate) -> bool:
    """Whether a buffer has the element type of the argument: else it is a cast."""
    source = source_of(candidate.facts.buffers.graph, candidate.first.instruction)
    return candidate.first.element_type == source.shape.element_type


def _is_reused(candidate: Candidate) -> bool:
    """Whether an output reuses the memory of the argument, so that a loop may update it there."""
    number = _number(candidate)
    return any(a.number == number and a.aliased for a in candidate.facts.arguments)


def _is_rewritten(candidate: Candidate) -> bool:
    """Whether a sort or a loop changes a buffer in place: in any layout, it needs such a copy."""
    graph, copy = candidate.facts.buffers.graph, candidate.first.instruction
    if any(user.opcode == "sort" for user in graph.users(copy)):
        return True
    return any(
        operand == copy.id and not graph.keeps(loop, position)
        for start in graph.users(copy)
        if start.opcode == "tuple"
        for loop in graph.users(start)
        if loop.opcode == "while"
        for position, operand in enumerate(start.operand_ids)
    )


def _has_dimensions(candidate: Candidate) -> bool:
    """Whether a buffer has the dimensions of an argument, in any order: else it is a reshape."""
    ends = (sorted(end.instruction.shape.dimensions) for end in candidate.origin.ends)
    ours = candidate.long_dims
    return any([size for size in dims if size > 1] == ours for dims in ends)


def _layout(shape: str) -> str:
    """A shape without its memory space: a copy from one space to another has the same layout."""
    return _MEMORY_SPACE.sub("", shape)
