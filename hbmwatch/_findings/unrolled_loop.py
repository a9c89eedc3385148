"""The partial results of a Python loop that jit unrolled."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import BufferAdvice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.pairwise import is_gradient_per_example
from hbmwatch._findings.phrases import LAX_SCAN
from hbmwatch._findings.random_bits import is_random_bits
from hbmwatch._findings.whole import is_part_of_one
from hbmwatch._records.opcodes import is_collective


def _freed_bytes(buffers: Sequence[LiveBuffer]) -> int:
    """All partial results but one."""
    return all_bytes(buffers) - max(live.size_bytes for live in buffers)


ADVICE = BufferAdvice(
    slug="unrolled-loop",
    prior_weight=1.4,
    title="An unrolled Python loop keeps all its partial results alive{at}",
    remedy="Write the loop as jax.lax.scan or fori_loop that carries the partial result, so that "
    "only the values of one step exist at a time.",
    link=LAX_SCAN,
    will_not_help="del in Python: under jit, the compiler decides when a buffer is freed",
    freed_bytes=_freed_bytes,
)
# One formula can also make up to three equal buffers: q, k and v.
LEAST_STEPS = 4
# Gradients and updates of the arguments of this shape are not steps of a loop.
MOST_PER_ARGUMENT = 2
_ONLY_CUTS = frozenset(
    "parameter copy transpose bitcast reshape fusion copy-start copy-done slice tuple "
    "get-tuple-element".split()
)


def is_partial_result(candidate: Candidate) -> bool:
    """Whether equal buffers are results of the steps of an unrolled loop.

    They are not residuals, gradients (of all or of each example), parts of another array or of one
    operation (an FFT), random bits, what devices exchange, or buffers in a loop that is not
    unrolled.
    """
    first, count = candidate.first, len(candidate.buffers)
    if first.op.kind != "temporary" or count < LEAST_STEPS:
        return False
    if candidate.is_residual or first.forward or _is_slice(candidate):
        return False
    if is_gradient_per_example(candidate):
        return False
    if is_random_bits(candidate) or is_part_of_one(candidate):
        return False
    exchanged = is_collective(first.op.opcode)
    arguments = sum(1 for a in candidate.facts.arguments if a.dims == first.dims)
    per_argument = arguments > 0 and count <= MOST_PER_ARGUMENT * arguments
    loop, _ = candidate.facts.buffers.graph.loop_of(first.instruction)
    return not (exchanged or per_argument) and loop is None


def _is_slice(candidate: Candidate) -> bool:
    """Whether the buffer is only a part of another one."""
    ends = {end.instruction.opcode for end in candidate.origin.ends}
    return ends == {"slice"} and candidate.origin.chain <= _ONLY_CUTS
