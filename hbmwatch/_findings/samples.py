"""A value, or a gradient, that vmap computes for all entries of the mapped axis at once."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.mapped import depth, entries_of_product, fits
from hbmwatch._findings.pairwise import is_gradient_per_example, multiplies_rows
from hbmwatch._findings.phrases import LAX_MAP
from hbmwatch._findings.random_bits import RETURNED, is_drawn

# A layer's weights are a matrix, maybe one of a stack.
LEAST_RANK = 2
_CHUNKS = "jax.lax.map(f, xs, batch_size=...) instead of jax.vmap"
_OF_RESULTS = (
    "Chunks alone do not make a result of the program smaller. Reduce it inside the chunks "
    f"({_CHUNKS}, with an f that returns a mean or less), shard it, or call the function for one "
    "chunk at a time and move each result to host memory."
)


ADVICE = BufferAdvice(
    slug="samples",
    prior_weight=1.6,
    title="A vmap computes all of its results at once{at}",
    remedy=f"Go over the mapped axis in chunks: {_CHUNKS}, and reduce inside.",
    of_results=_OF_RESULTS,
    link=LAX_MAP,
    will_not_help="jit alone: vmap is the same as writing out the batch dimension",
)
DRAWN_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="A vmap draws all of its random results at once{at}",
    remedy=RETURNED,
    link="https://docs.jax.dev/en/latest/jax.random.html",
    will_not_help="jax.lax.map in place of jax.vmap: it stacks the same results",
)
# The pairs of a loss may be computed under a vmap, too.
PAIRS_ADVICE = dataclasses.replace(ADVICE, by_blocks=True)
GRADIENTS_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="The gradients of all examples exist at once{at}: a vmap around a gradient",
    remedy="Go over the examples in chunks, and reduce inside (clip and add, or take norms): "
    f"{_CHUNKS}, or a scan over micro-batches that carries the sum.",
    of_results=_OF_RESULTS,
    link=LAX_MAP,
    will_not_help="jax.checkpoint: each of these is a result of the backward pass, and as large as "
    "the weights",
)


def is_weight_gradient(candidate: Candidate) -> bool:
    """Whether a buffer has the gradient of some weights, or of one layer's, for each example."""
    if not is_gradient_per_example(candidate) or not is_backward(candidate.first.name):
        return False
    sizes = Counter(candidate.long_dims)
    weights = (Counter(a.dims[-LEAST_RANK:]) for a in candidate.facts.arguments)
    return any(sum(w.values()) >= LEAST_RANK and w <= sizes != w for w in weights)


def is_mapped(candidate: Candidate) -> bool:
    """Whether a vmap of the user makes the buffer, and not for a gradient.

    An identity matrix has no entry for each entry of the axis.
    """
    names = candidate.names
    return depth(names) > 0 and "jvp(" not in names and not candidate.is_identity


def is_drawn_result(candidate: Candidate) -> bool:
    """Whether a vmap of the user draws a result of the program, such as the weights of layers."""
    is_result = candidate.facts.buffers.is_result(candidate.first)
    return is_result and is_mapped(candidate) and is_drawn(candidate)


def is_product_of_samples(candidate: Candidate) -> bool:
    """Whether vmaps make scores, or products of rows, for each entry of the mapped axes.

    With as many vmaps as dimensions, each entry is one number, and they make all pairs.
    """
    if candidate.product is None or not is_mapped(candidate):
        return False
    entries = entries_of_product(candidate)
    if entries <= 1 or not fits(candidate, entries):
        return False
    return candidate.is_softmax_input or multiplies_rows(candidate)
