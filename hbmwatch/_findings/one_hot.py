"""A one-hot matrix."""

from __future__ import annotations

from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.pairwise import combines_two_arrays
from hbmwatch._findings.random_bits import THREEFRY_OPCODES

ADVICE = BufferAdvice(
    slug="one-hot",
    prior_weight=2.0,
    title="Index instead of multiplying by a one-hot matrix{at}",
    remedy="Index instead of one_hot: table[tokens] for an embedding, take_along_axis (or "
    "softmax_cross_entropy_with_integer_labels) for a loss, in chunks if needed.",
    link="https://docs.jax.dev/en/latest/_autosummary/jax.nn.one_hot.html",
    will_not_help="a narrower dtype, which only halves the matrix",
)


def is_one_hot(candidate: Candidate) -> bool:
    """Whether the buffer compares an index with an iota: one_hot, or the same by hand.

    The gradient of what a one-hot matrix selects from is as large, and exists without it too.
    """
    if "one_hot" in candidate.names:
        return not is_backward(candidate.first.name)
    opcodes = [end.instruction.opcode for end in candidate.ends]
    chain = candidate.origin.chain
    return (
        len(opcodes) > 1
        and opcodes.count("iota") == 1
        and set(opcodes) <= {"iota", "broadcast"}
        and "compare" in chain
        and "select" not in chain
        and not THREEFRY_OPCODES & chain
        and not candidate.is_identity
        and not combines_two_arrays(candidate)
    )
