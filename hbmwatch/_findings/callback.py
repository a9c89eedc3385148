"""A buffer that is kept in full because a jax.debug.print or a callback sends it to the host."""

from __future__ import annotations

from hbmwatch._analysis.live_buffers import CALLBACKS
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.protos import HloInstructionProto

ADVICE = BufferAdvice(
    slug="callback",
    prior_weight=3.0,
    title="Remove a jax.debug.print or callback: it keeps a whole buffer{at}",
    remedy="Remove the jax.debug.print (or callback), or pass it a reduced value such as a mean.",
    link="https://docs.jax.dev/en/latest/debugging/print_breakpoint.html",
    will_not_help="a smaller batch, which only makes the buffer smaller: without the "
    "callback the compiler may not have to allocate it at all",
    without_batch="",
    reads_origin=False,
)


CHECK_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="An error check of equinox (error_if) passes a whole buffer to the host{at}",
    remedy="Make the call without the check, so that the values exist once: throw=False for a "
    "solver of diffrax or optimistix, and test what it returns (Solution.result); or set the "
    "environment variable EQX_ON_ERROR=off.",
    link="https://docs.kidger.site/equinox/api/errors/",
    will_not_help="jax.jit options: the check reads the values even where no error occurs",
    reads_origin=False,
)
_CHECK = "error_if"


def is_checked(candidate: Candidate) -> bool:
    """Whether an error check of equinox reads the buffer, or made it: it returns what it checks."""
    buffers = candidate.facts.buffers
    if not buffers.calls_back:
        return False
    readers = (*candidate.uses, *buffers.readers(candidate.first))
    names = (candidate.first.name, *(user.metadata.op_name for user in readers))
    return any(_CHECK in name and any(word in name for word in CALLBACKS) for name in names)


def is_sent_to_host(candidate: Candidate) -> bool:
    """Whether a callback reads the buffer."""
    buffers = candidate.facts.buffers
    if not buffers.calls_back:
        return False
    readers = (*candidate.uses, *buffers.readers(candidate.first))
    return any(map(_is_callback, readers))


def _is_callback(user: HloInstructionProto) -> bool:
    """Whether an instruction hands its operand to the host."""
    if user.opcode not in ("send", "outfeed", "custom-call"):
        return False
    names = (user.metadata.op_name.rpartition("/")[2], user.custom_call_target)
    return any(word in name for name in names for word in CALLBACKS)
