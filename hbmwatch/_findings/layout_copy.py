"""A second copy of an argument, in another layout."""

from __future__ import annotations

import re

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


ADVICE = BufferAdvice(
    slug="layout-copy",
    prior_weight=1.4,
    title="The compiler keeps a second copy of an argument in another layout{at}",
    remedy="Store the argument in the layout that the program uses (transpose it once, before the "
    "call), or let jit choose it with jax.experimental.layout (Format, Layout.AUTO).",
    link="https://docs.jax.dev/en/latest/jax.experimental.layout.html",
    will_not_help="donation: both copies are needed while the program runs",
    names_argument=True,
    even_if_padded=True,
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
    if first.op.kind != "temporary":
        return False
    source = source_of(candidate.facts.buffers.graph, first.instruction)
    is_argument = candidate.facts.buffers.graph.is_argument(source)
    return is_argument and _layout(first.op.shape) != _layout(shape_text(source.shape))


def is_moved_argument(candidate: Candidate) -> bool:
    """Whether a temporary is an argument that was only moved."""
    if candidate.first.op.kind != "temporary" or not candidate.is_argument:
        return False
    shapes = {_layout(shape_text(end.instruction.shape)) for end in candidate.origin.ends}
    return candidate.origin.chain <= _ONLY_MOVES and _layout(candidate.first.op.shape) not in shapes


def _layout(shape: str) -> str:
    """A shape without its memory space: a copy from one space to another has the same layout."""
    return _MEMORY_SPACE.sub("", shape)
