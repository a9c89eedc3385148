"""The scores of an attention layer, for all pairs of tokens."""

from __future__ import annotations

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate

ADVICE = BufferAdvice(
    slug="attention-scores",
    prior_weight=1.8,
    title="A full attention score matrix (all pairs of tokens){at}",
    remedy="Use attention that never stores the score matrix: jax.nn.dot_product_attention with a "
    "flash (cudnn) or Pallas splash kernel, or jax.lax.map over blocks of queries.",
    link="https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
    will_not_help="jax.checkpoint around the layer: the scores of one layer still exist in full",
)
# Queries and keys have a batch, a token and a feature dimension; logits come from a plain matrix.
LEAST_RANK = 3


def is_attention(candidate: Candidate) -> bool:
    """Whether a softmax reads a product of two batches of tokens, or a square product."""
    product = candidate.product
    if product is None or not candidate.is_softmax_input:
        return False
    ranks = [len([d for d in f.shape.dimensions if d > 1]) for f in product.factors]
    return min(ranks, default=0) >= LEAST_RANK or candidate.is_square
