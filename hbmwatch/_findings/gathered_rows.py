"""Rows that an index selects from a smaller array: all of them exist at once."""

from __future__ import annotations

import math

from hbmwatch._analysis import no_batch
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import elements
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import LAX_MAP, OF_RESULTS
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.types import float_bits

ADVICE = BufferAdvice(
    slug="gathered-rows",
    prior_weight=1.8,
    title="An index copies a whole matrix for each of its entries{at}",
    remedy="Do not gather the matrices. To multiply rows by them, sort the rows by index and use "
    "jax.lax.ragged_dot, which multiplies each group by its own matrix; or go over blocks of the "
    "index with jax.lax.map(..., batch_size=...).",
    link="https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot.html",
    will_not_help="jit: the product reads the copies, so they exist in full",
    by_blocks=True,
    of_results=OF_RESULTS,
)
EDGES_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=1.7,
    title="The values for all entries of an index (such as the edges of a graph) exist at once{at}",
    remedy="Go over blocks of the index with jax.lax.scan: select the rows of one block, compute, "
    "and add the result to the sum that the scan carries (segment_sum, or at[index].add).",
    link=LAX_MAP,
    will_not_help="jit: the rows are selected and computed in full before they are added up",
    by_blocks=True,
    of_results=OF_RESULTS,
)
REDUCED_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=EDGES_ADVICE.prior_weight,
    title="All rows that an index selects are gathered before they are reduced{at}",
    remedy="Go over blocks of the index with jax.lax.map(..., batch_size=...): gather and reduce "
    "for one block at a time. Or scan over the dimension that is reduced, and carry the sum (or "
    "the maximum): then one row is gathered for each result at a time.",
    link=LAX_MAP,
    will_not_help="jit: the compiler does not fuse this gather into the reduction",
    by_blocks=True,
    of_results=OF_RESULTS,
)
# On average, each row of the array is copied at least twice.
LEAST_GROWTH = 2
# Fewer rows do not fill a device; an index of so few may be a batch of labels.
LEAST_EDGES = 1 << 16
# A row with two dimensions is a matrix.
LEAST_RANK = 3


def gathers_matrices(candidate: Candidate) -> bool:
    """Whether an index selects matrices, such as the weights of an expert for each token."""
    graph = candidate.facts.buffers.graph
    for end in candidate.origin.ends:
        table = graph.first(end.instruction) if end.instruction.opcode == "gather" else None
        if table is None:
            continue
        row = [size for size in table.shape.dimensions if size > 1][1:]
        last = [size for size in end.instruction.shape.dimensions if size > 1][-len(row) :]
        if len(row) >= LEAST_RANK - 1 and last == row and _grows(end.instruction, table):
            return True
    return False


def gathers_to_reduce(candidate: Candidate) -> bool:
    """Whether a sum, or a maximum, goes over several of the rows that an index selects.

    It keeps the last dimension of the rows: a sum over features is a norm or a product.
    """
    graph = candidate.facts.buffers.graph
    for end in candidate.origin.ends:
        table = graph.first(end.instruction) if end.instruction.opcode == "gather" else None
        if table is None or not _grows(end.instruction, table):
            continue
        features = table.shape.dimensions[-1] if len(table.shape.dimensions) > 1 else 0
        if features > 1 and any(_adds_rows(candidate, user, features) for user in candidate.uses):
            return True
    return False


def _grows(gather: HloInstructionProto, table: HloInstructionProto) -> bool:
    """Whether an index selects each row of an array twice and more, on average."""
    return elements(gather.shape) >= LEAST_GROWTH * elements(table.shape)


def _adds_rows(candidate: Candidate, user: HloInstructionProto, features: int) -> bool:
    """Whether an instruction of the forward pass reduces all rows to fewer rows, not to one."""
    if user.opcode != "reduce" or is_backward(user.metadata.op_name):
        return False
    rows = candidate.facts.buffers.graph.first(user)
    count = elements(user.shape)
    return (
        rows is not None
        and elements(rows.shape) == math.prod(candidate.first.dims)
        and features in user.shape.dimensions
        and features < count <= elements(rows.shape) // LEAST_GROWTH
    )


def is_one_per_edge(candidate: Candidate) -> bool:
    """Whether a buffer has a row for each entry of an index by which rows are added."""
    dims, facts = candidate.first.dims, candidate.facts
    if len(dims) < 2 or dims[0] < LEAST_EDGES:
        return False
    # Before the whole program is read: an argument has the index.
    indices = {a.dims[0] for a in facts.arguments if a.dims and not float_bits(a.element_type)}
    return dims[0] in indices and dims[0] in facts.once(_edges)


def _edges(facts: ProgramFacts) -> frozenset[int]:
    """The lengths of the indices by which the forward pass adds rows, and selects them too."""
    graph = facts.buffers.graph
    selected = {
        gather.shape.dimensions[0]
        for computation in graph.program.computations.values()
        for gather in graph.program.inside(computation)
        if gather.opcode == "gather" and gather.shape.dimensions
    }
    return no_batch.edges(graph) & selected
