"""A buffer with an entry for each pair of two arrays' rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import MOVES, elements
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings import whole
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.mapped import batch_of_pairs, entries_of_pairs, fits
from hbmwatch._findings.phrases import LAX_MAP, OF_RESULTS, at_line
from hbmwatch._findings.random_bits import THREEFRY_OPCODES
from hbmwatch._records.report import Finding
from hbmwatch._records.text import clean
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.types import PrimitiveType

PRIOR_WEIGHT = 1.7
# Above what padding adds to gathered rows.
GATHERED_WEIGHT = 2.1
_GATHERED = "Pairs of rows are gathered"


def _weigh(facts: ProgramFacts, finding: Finding) -> float:
    """The weight: above that of padding where an index gathers the pairs."""
    return GATHERED_WEIGHT if finding.title.startswith(_GATHERED) else PRIOR_WEIGHT


_PIECES = "Do not compute all pairs at once:"
_LAX_MAP = "with jax.lax.map(..., batch_size=...)"
_BLOCKS = f"go over blocks of rows {_LAX_MAP}."
_SQUARE = "expand the square (x**2 - 2 x @ y.T + y**2)"


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change: the square is expanded only where squared differences are summed."""
    uncut = next(filter(None, map(whole.along_an_axis, found)), "")
    if uncut:
        return f"{_PIECES} go over blocks {_LAX_MAP}, along an axis that {uncut}."
    batches = [(candidate, batch_of_pairs(candidate)) for candidate in found]
    if all(entries > 1 and fits(candidate, entries) for candidate, entries in batches):
        return f"{_PIECES} go over a few entries of the leading dimension at a time {_LAX_MAP}."
    if any(map(_sums_squares, found)):
        return f"{_PIECES} {_SQUARE}, or {_BLOCKS}"
    return ADVICE.remedy


def _remedy_of_whole(found: Sequence[Candidate]) -> str:
    """What to change where a factorization needs each matrix as a whole."""
    largest = next(c for c in found if whole.factorization(c))
    name = whole.factorization(largest)
    needs = (
        f"{whole.reader_named(name)} needs the matrix whole, so blocks of its rows do not help. "
    )
    if math.prod(largest.first.dims[:-2]) > 1:
        return f"{needs}Go over fewer matrices at a time: jax.lax.map over the leading dimension."
    instead = whole.instead_of(name)
    return f"{needs}Use fewer points, or a low-rank approximation (inducing points)" + (
        f"; {instead}." if instead else "."
    )


def _sums_squares(candidate: Candidate) -> bool:
    """Whether a buffer has the squared difference of each pair and feature, and a sum reads it."""
    dims = [size for size in candidate.first.dims if size > 1]
    chain, readers = candidate.origin.chain, {user.opcode for user in candidate.uses}
    squares = chain <= _SQUARES and {"subtract", "multiply"} <= chain
    return len(dims) > 2 and squares and "reduce" in readers and "sort" not in readers


ADVICE = BufferAdvice(
    slug="pairwise",
    prior_weight=PRIOR_WEIGHT,
    weigh=_weigh,
    title="An all-pairs buffer (pairwise differences or products){at}",
    remedy=f"{_PIECES} {_BLOCKS}",
    remedy_for=_remedy,
    link=LAX_MAP,
    will_not_help="jit or vmap: the compiler keeps the all-pairs buffer either way",
    by_blocks=True,
    of_results=OF_RESULTS,
)
WHOLE_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=PRIOR_WEIGHT,
    weigh=_weigh,
    title="A matrix of all pairs is factorized whole{at}",
    remedy="Use fewer points, or a low-rank approximation.",
    remedy_for=_remedy_of_whole,
    link="https://docs.jax.dev/en/latest/jax.scipy.html",
    will_not_help=ADVICE.will_not_help,
    of_results=OF_RESULTS,
)
GATHER_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=GATHERED_WEIGHT,
    weigh=_weigh,
    title=f"{_GATHERED} all at once{{at}}",
    remedy="Go over blocks of rows with jax.lax.map(..., batch_size=...): compute the index, "
    "gather and reduce for one block at a time. For all pairs, broadcast instead of gathering "
    "(x[:, None] - x[None]), which the compiler can fuse into the reduction.",
    link=LAX_MAP,
    will_not_help="jit or vmap, and a transposed array: the gathered rows exist in full either way",
    by_blocks=True,
    of_results=OF_RESULTS,
    even_if_padded=True,
)
_DIAGONAL = (
    "Compute only the part that is used: for its diagonal, sum the squares; for a product with a "
    "vector, x.T @ (x @ v). Otherwise go"
)
_GRAM_BLOCKS = (
    "over blocks of its rows with jax.lax.map(..., batch_size=...), or keep a low-rank or diagonal "
    "approximation."
)


def _remedy_of_gram(found: Sequence[Candidate]) -> str:
    """What to change: a function of each product is not linear in x."""
    return f"{_DIAGONAL if all(map(_is_product, found)) else 'Go'} {_GRAM_BLOCKS}"


def _is_product(candidate: Candidate) -> bool:
    """Whether a buffer is a product itself, and not a function of one."""
    return candidate.origin.chain <= _PRODUCTS


def _line_of_gram(found: Sequence[Candidate]) -> str:
    """Where the product is."""
    graph, largest = found[0].facts.buffers.graph, found[0]
    product = next((e.instruction for e in largest.ends if graph.is_product(e.instruction)), None)
    line = largest.facts.buffers.line_of(product) if product is not None else ""
    return f" at {clean(line, 60)}" if line else at_line(largest.buffers)


GRAM_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=PRIOR_WEIGHT,
    title="A matrix is multiplied by its own transpose in full{at}: a Gram or covariance matrix",
    remedy=f"{_DIAGONAL} {_GRAM_BLOCKS}",
    remedy_for=_remedy_of_gram,
    line_for=_line_of_gram,
    link=LAX_MAP,
    will_not_help="jit: the compiler does not look for the entries that are used",
    by_blocks=True,
    of_results=OF_RESULTS,
)
# Below 16 times its factors, a product of rows may be a layer whose weights are transposed.
LEAST_GROWTH = 16
# A vmap around a gradient: one gradient per example. For a batched loss, vmap is inside of jvp.
_MAPPED_GRADIENTS = ("vmap(jvp(", "vmap(transpose(")
# What makes squared differences of two arrays: with anything else, the square is not expanded.
_SQUARES = MOVES | frozenset("broadcast subtract multiply fusion parameter iota".split())
# Between a product and the buffer that has it, in any form.
_PRODUCTS = MOVES | frozenset("dot convolution fusion parameter tuple".split())
# In all pairs each row meets at least 32 others; fewer may be features or states.
LEAST_COPIES = 32


def is_mapped_twice(candidate: Candidate) -> bool:
    """Whether two vmaps multiply rows; such products are pairs even if a softmax reads them."""
    nested = any("vmap(vmap(" in name for name in candidate.origin.names)
    return nested and multiplies_rows(candidate)


def is_factorized(candidate: Candidate) -> bool:
    """Whether a matrix of all pairs, or each of a batch of them, is factorized as a whole."""
    if not (candidate.has_all_pairs and whole.factorization(candidate)):
        return False
    rules = (combines_two_arrays, multiplies_rows, is_gram, multiplies_values)
    return any(makes_pairs(candidate) for makes_pairs in rules)


def makes_pairs_for_each(candidate: Candidate) -> bool:
    """Whether a vmap makes all pairs for each of its entries, and those of one entry fit."""
    entries = entries_of_pairs(candidate)
    return entries > 1 and combines_two_arrays(candidate) and fits(candidate, entries)


def gathers_pairs(candidate: Candidate) -> bool:
    """Whether each row of an array meets many others, which an index selects: p[:, None] - p[idx].

    What reads the gathered rows reads the array too; an embedding is looked up alone.
    """
    graph = candidate.facts.buffers.graph
    if "reduce" in candidate.origin.chain:  # a sum of the gathered rows has no pairs
        return False
    for end in candidate.origin.ends:
        table = graph.first(end.instruction) if end.instruction.opcode == "gather" else None
        if table is None or elements(table.shape) * LEAST_COPIES > elements(end.instruction.shape):
            continue
        rows = source_of(graph, table, end.outer)
        readers = candidate.facts.buffers.readers(candidate.first)
        beside = [other for user in readers for other in graph.operands(user)]
        if any(source_of(graph, other).id == rows.id for other in beside):
            return True
    return False


def multiplies_rows(candidate: Candidate) -> bool:
    """Whether arguments are multiplied row by row: one by itself, or two with equal features.

    The weights of a layer have the features first, and those of the result last.
    """
    product = candidate.product
    if product is None or product.growth < LEAST_GROWTH:
        return False
    return _are_rows(product.arguments, product.size)


def is_contrastive(candidate: Candidate) -> bool:
    """Whether a softmax reads a square product of two values that are no weights.

    The logits of a classifier multiply values by an argument, or by a part of one.
    """
    product = candidate.product
    if product is None or not candidate.is_square or not candidate.is_softmax_input:
        return False
    given = list(filter(candidate.facts.buffers.graph.is_argument, product.sources))
    return not given or _are_rows(product.arguments, product.size)


def multiplies_values(candidate: Candidate) -> bool:
    """Whether a product has an entry for each pair of rows of two values that are no weights.

    The gradient of a layer is a product of two values, too, in the shape of its weights.
    """
    product = candidate.product
    if product is None or product.growth < LEAST_GROWTH or len(product.sources) != 2:
        return False
    if any(map(candidate.facts.buffers.graph.is_argument, product.sources)):
        return False
    return not is_backward(candidate.first.name) and not _has_shape_of_argument(candidate)


def is_gram(candidate: Candidate) -> bool:
    """Whether a square matrix is the product of a matrix and its own transpose."""
    product = candidate.product
    if product is None or product.growth < LEAST_GROWTH or not candidate.is_square:
        return False
    ids = {source.id for source in product.sources}
    return len(product.sources) == 2 and len(ids) == 1


def _are_rows(factors: Sequence[HloInstructionProto | None], size: int) -> bool:
    """Whether all factors are matrices with the same second dimension."""
    dims = [tuple(factor.shape.dimensions) for factor in factors if factor is not None]
    if len(dims) != len(factors) or not dims or any(len(shape) != 2 for shape in dims):
        return False
    (rows, features), (other_rows, other_features) = dims[0], dims[-1]
    return features == other_features and rows * other_rows == size


def combines_two_arrays(candidate: Candidate) -> bool:
    """Whether two smaller arrays are broadcast along different dimensions.

    In the gradient of a layer they are, too: it has the dimensions of the layer's weights.
    """
    ends = [end.instruction for end in candidate.ends]
    spread = [end for end in ends if end.opcode == "broadcast"]
    if not spread or not {end.opcode for end in ends} <= {"broadcast", "iota"}:
        return False
    if candidate.origin.chain >= THREEFRY_OPCODES or is_gradient_per_example(candidate):
        return False
    sizes = []
    for end in spread:
        source = candidate.facts.buffers.graph.first(end)
        if source is None or source.shape.element_type == PrimitiveType.PRED:  # a mask
            continue
        if elements(source.shape) * LEAST_COPIES <= elements(end.shape):
            sizes.append(elements(source.shape))
    whole = elements(spread[0].shape)
    if len(sizes) < 2 or math.prod(sorted(sizes)[-2:]) < whole:
        return False
    return not (candidate.facts.buffers.differentiated and _has_shape_of_argument(candidate))


def is_gradient_per_example(candidate: Candidate) -> bool:
    """Whether vmap computes the buffer as a gradient for each example."""
    return any(word in candidate.names for word in _MAPPED_GRADIENTS)


def _has_shape_of_argument(candidate: Candidate) -> bool:
    """Whether an argument, or a layer of its stack, has the buffer's dimensions, in any order."""
    dims = candidate.long_dims
    weights = (a.dims[start:] for a in candidate.facts.arguments for start in (0, 1))
    return any(sorted(size for size in shape if size > 1) == dims for shape in weights)
