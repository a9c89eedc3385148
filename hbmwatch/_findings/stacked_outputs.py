"""A result of a scan that is stacked over all its steps."""

from __future__ import annotations

from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_SCAN

ADVICE = BufferAdvice(
    slug="stacked-outputs",
    prior_weight=1.8,
    title="A scan stacks its outputs over all steps{at}",
    remedy="Return from the scan only what is needed (the last state, a running mean, every n-th "
    "step): the second output of the body is stacked over all steps.",
    link=LAX_SCAN,
    will_not_help="donation or jax.checkpoint: this buffer is the result of the scan",
    reads_origin=False,
)


def is_loop_state(candidate: Candidate) -> bool:
    """Whether a loop updates an argument or a gradient in place: an ordinary buffer."""
    filled = candidate.first.loop_buffer
    if filled is None:
        return False
    return filled.from_argument or is_backward(candidate.first.context)


def is_stacked(candidate: Candidate) -> bool:
    """Whether a loop fills the buffer, one slice per step."""
    return candidate.first.loop_buffer is not None
