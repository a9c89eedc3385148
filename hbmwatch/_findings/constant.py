"""A large array that the jitted function closes over: it becomes a constant of the program."""

from __future__ import annotations

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate

ADVICE = BufferAdvice(
    slug="constant",
    prior_weight=2.5,
    title="The function closes over a large array{at}, which becomes a constant of the program",
    remedy="Pass the array as an argument of the jitted function instead of closing over it.",
    link="https://docs.jax.dev/en/latest/jit-compilation.html",
    will_not_help="donation: a constant is part of the program and cannot be donated",
    reads_origin=False,
)


def is_constant(candidate: Candidate) -> bool:
    """Whether the compiler allocated the buffer for a constant."""
    return candidate.first.op.kind == "constant"
