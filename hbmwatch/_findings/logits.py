"""The logits of all tokens over the whole vocabulary, or other scores that a softmax reads."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import elements
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._analysis.sources import everything, source_of
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_MAP, at_line
from hbmwatch._findings.products import classes_named
from hbmwatch._xla.types import PrimitiveType

_CHUNKS = "Compute the loss in chunks of tokens: jax.lax.map (or scan) over chunks"
_AT_A_TIME = "so that one chunk of logits exists at a time."
_CHECKPOINT = ", with jax.checkpoint around the chunk"
_ROWS = "Go over chunks of whole rows: jax.lax.map (or scan) over the chunks"
_PRODUCT_AT_A_TIME = "so that the product of one chunk exists at a time."


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change; without a gradient there is nothing to checkpoint."""
    if found[0].facts.buffers.differentiated:
        return ADVICE.remedy
    return f"{_CHUNKS}, {_AT_A_TIME}"


def _remedy_of_scores(found: Sequence[Candidate]) -> str:
    """The same for a product that may have another meaning."""
    if found[0].facts.buffers.differentiated:
        return SCORES_ADVICE.remedy
    return f"{_ROWS}, {_PRODUCT_AT_A_TIME}"


def _what_reads(found: Sequence[Candidate]) -> str:
    """What reads a product, and where it is made (" that a softmax reads at train.py:7")."""
    at = at_line([live for candidate in found for live in candidate.buffers])
    reader = next(filter(None, (c.reader_of_scores for c in found)), "")
    return f" that {reader or 'an exponential with a sum'} reads{at}"


ADVICE = BufferAdvice(
    slug="logits",
    prior_weight=1.8,
    title="Full-vocabulary logits{at}: compute the loss in chunks",
    remedy=f"{_CHUNKS}{_CHECKPOINT}, {_AT_A_TIME}",
    remedy_for=_remedy,
    link=LAX_MAP,
    will_not_help="jax.checkpoint alone: recomputed logits exist in full again when they are used",
)
SCORES_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="A matrix product{at} exists for all rows at once: compute it in chunks",
    remedy=f"{_ROWS}{_CHECKPOINT}, {_PRODUCT_AT_A_TIME}",
    remedy_for=_remedy_of_scores,
    link=LAX_MAP,
    line_for=_what_reads,
    will_not_help="jax.checkpoint alone: a recomputed product exists in full again when it is used",
)
# Types of labels and tokens; the keys of jax.random are unsigned.
_LABELS = frozenset(
    (PrimitiveType.S8, PrimitiveType.S16, PrimitiveType.S32, PrimitiveType.S64, PrimitiveType.U16)
)


def is_over_vocabulary(candidate: Candidate) -> bool:
    """Whether scores are logits that have one entry for each row of a table of embeddings."""
    return is_logits(candidate) and not candidate.facts.once(_table_rows).isdisjoint(
        candidate.first.dims
    )


def is_softmax_of_product(candidate: Candidate) -> bool:
    """Whether a softmax, or an exponential and a sum, reads a product, whatever it stands for."""
    return candidate.product is not None and candidate.is_softmax_input


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


def _table_rows(facts: ProgramFacts) -> frozenset[int]:
    """The number of rows of each argument from which integers select rows: an embedding."""
    graph = facts.buffers.graph
    found = set()
    for instruction, outer in everything(graph):
        if instruction.opcode != "gather" or is_backward(instruction.metadata.op_name):
            continue
        operands = graph.operands(instruction)
        if len(operands) < 2 or operands[1].shape.element_type not in _LABELS:
            continue
        table = source_of(graph, operands[0], outer)
        dims = table.shape.dimensions
        if graph.is_argument(table) and len(dims) == 2:  # an index selects whole rows
            if elements(instruction.shape) % dims[1] == 0:
                found.add(dims[0])
    return frozenset(found)
