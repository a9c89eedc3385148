"""The scores of an attention layer, for all pairs of tokens."""

from __future__ import annotations

import dataclasses

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.products import Product, weighs
from hbmwatch._records.report import Finding

PRIOR_WEIGHT = 1.8
# All residuals are more than the scores among them.
KEPT_WEIGHT = 0.9
_KEPT = "The attention scores of every layer"


def _weigh(facts: ProgramFacts, finding: Finding) -> float:
    """The weight: below that of residuals where the scores are residuals."""
    return KEPT_WEIGHT if finding.title.startswith(_KEPT) else PRIOR_WEIGHT


_KERNELS = (
    "on a TPU, a Pallas kernel (flash_attention or splash_attention); on a GPU, "
    'jax.nn.dot_product_attention with implementation="cudnn"'
)
ADVICE = BufferAdvice(
    slug="attention-scores",
    prior_weight=PRIOR_WEIGHT,
    weigh=_weigh,
    title="A full attention score matrix (all pairs of tokens){at}",
    remedy=f"Use attention that never stores the score matrix: {_KERNELS}. Or jax.lax.map over "
    "blocks of queries.",
    link="https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
    will_not_help="jax.checkpoint around the layer: the scores of one layer still exist in full",
)
# Without jax.checkpoint, the loop would stack the scores of all blocks for the backward pass.
TRAINING_ADVICE = dataclasses.replace(
    ADVICE, remedy=f"{ADVICE.remedy[:-1]}, with jax.checkpoint around each block."
)
KEPT_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=KEPT_WEIGHT,
    weigh=_weigh,
    title=f"{_KEPT} are kept for the backward pass{{at}}",
    remedy="Use attention that never stores the score matrix, forward or backward: "
    f"{_KERNELS}. jax.checkpoint around each layer frees all scores but those of one layer.",
    link=ADVICE.link,
)
# Queries and keys have a batch, a token and a feature dimension; logits come from a plain matrix.
LEAST_RANK = 3


def is_attention(candidate: Candidate) -> bool:
    """Whether a softmax of a product of two batches of tokens, or a square one, weighs values.

    A contrastive loss takes a softmax of all pairs, and multiplies nothing by it. The kernel of a
    Gaussian process is a product of exponentials, but no softmax.
    """
    product = candidate.product
    if product is None or not candidate.is_softmax_input or not _weighs(candidate, product):
        return False
    return candidate.is_square or _multiplies_batches(product)


def is_attention_in_training(candidate: Candidate) -> bool:
    """Whether it is attention, and the program has a backward pass."""
    return candidate.facts.buffers.differentiated and is_attention(candidate)


def is_gradient(candidate: Candidate) -> bool:
    """Whether the backward pass makes a buffer with the dimensions of a score matrix."""
    if "transpose(" not in candidate.first.name or candidate.product is None:
        return False
    return tuple(sorted(candidate.first.dims)) in candidate.facts.once(_scores)


def _weighs(candidate: Candidate, product: Product) -> bool:
    """Whether a softmax of as many elements as a product is multiplied by something: the values."""
    return weighs(candidate.facts, product.size)


def _scores(facts: ProgramFacts) -> frozenset[tuple[int, ...]]:
    """The sorted dimensions of the score matrices at the peak."""
    families = {live.family: live for live in facts.live if live.op.kind != "parameter"}
    large = (live for live in families.values() if live.size_bytes >= facts.least_part_bytes)
    return frozenset(
        tuple(sorted(live.dims)) for live in large if is_attention(Candidate(facts, [live]))
    )


def is_kept(candidate: Candidate) -> bool:
    """Whether residuals are a product of two batches of tokens, or the softmax of one.

    The body of a scan has no name of the softmax, so that its exponential counts.
    """
    product = candidate.product
    if product is None or not _multiplies_batches(product) or not _weighs(candidate, product):
        return False
    exponential = "exponential" in candidate.origin.chain
    return exponential or candidate.is_softmax_input


def _multiplies_batches(product: Product) -> bool:
    """Whether both factors of a product have a batch, a token and a feature dimension."""
    ranks = [len([d for d in f.shape.dimensions if d > 1]) for f in product.factors]
    return min(ranks, default=0) >= LEAST_RANK
