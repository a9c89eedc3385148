"""The logits of all tokens over the whole vocabulary."""

from __future__ import annotations

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_MAP

ADVICE = BufferAdvice(
    slug="logits",
    prior_weight=1.8,
    title="Full-vocabulary logits{at}: compute the loss in chunks",
    remedy="Compute the loss in chunks of tokens: jax.lax.map (or scan) over chunks, with "
    "jax.checkpoint around the chunk, so that one chunk of logits exists at a time.",
    link=LAX_MAP,
    will_not_help="jax.checkpoint alone: recomputed logits exist in full again when they are used",
)


def is_logits(candidate: Candidate) -> bool:
    """Whether a softmax reads a product that is much larger than its factors."""
    return candidate.product is not None and candidate.is_softmax_input
