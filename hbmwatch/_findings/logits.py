"""The logits of all tokens over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_MAP
from hbmwatch._findings.products import classes_named
from hbmwatch._xla.types import PrimitiveType

_CHUNKS = "Compute the loss in chunks of tokens: jax.lax.map (or scan) over chunks"
_AT_A_TIME = "so that one chunk of logits exists at a time."


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change; without a gradient there is nothing to checkpoint."""
    if found[0].facts.buffers.differentiated:
        return ADVICE.remedy
    return f"{_CHUNKS}, {_AT_A_TIME}"


ADVICE = BufferAdvice(
    slug="logits",
    prior_weight=1.8,
    title="Full-vocabulary logits{at}: compute the loss in chunks",
    remedy=f"{_CHUNKS}, with jax.checkpoint around the chunk, {_AT_A_TIME}",
    remedy_for=_remedy,
    link=LAX_MAP,
    will_not_help="jax.checkpoint alone: recomputed logits exist in full again when they are used",
)
# Types of labels and tokens; the keys of jax.random are unsigned.
_LABELS = frozenset(
    (PrimitiveType.S8, PrimitiveType.S16, PrimitiveType.S32, PrimitiveType.S64, PrimitiveType.U16)
)


def is_logits(candidate: Candidate) -> bool:
    """Whether a softmax over classes reads a product that is much larger than its factors.

    A logsumexp alone also reduces costs and energies; of logits, if the program has labels.
    """
    if candidate.product is None or not candidate.is_softmax_input:
        return False
    return classes_named(candidate.origin, candidate.uses) or _has_labels(candidate)


def _has_labels(candidate: Candidate) -> bool:
    """Whether an argument is an array of integers, which may be labels or tokens."""
    arguments = candidate.facts.arguments
    return any(argument.dims and argument.element_type in _LABELS for argument in arguments)
