"""The axes of a buffer that vmap made: one entry of the mapped axes, and the rest of the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.random_bits import RANDOM_NAMES
from hbmwatch._xla.protos import HloInstructionProto

# Functions of JAX that have a vmap inside.
_MAPPED_INSIDE = (*RANDOM_NAMES, "searchsorted")


def depth(op_names: str) -> int:
    """How many vmaps of the user are around an operation; those inside of JAX come after a name."""
    starts = [position for word in _MAPPED_INSIDE if (position := op_names.find(word)) >= 0]
    return op_names[: min(starts, default=len(op_names))].count("vmap(")


def _shared_axes(spread: Sequence[HloInstructionProto]) -> int:
    """How many leading axes the broadcasts that make pairs have from their operands, all alike.

    vmap puts its axis first. What lacks the axis (an identity matrix that is added to each entry)
    makes no pairs where the others have all the remaining axes.
    """
    every = set(range(len(spread[0].shape.dimensions)))
    kept = [set(end.dimensions) for end in spread]
    for axis in every:
        kept = [axes for axes in kept if axis in axes]
        if set().union(*kept) != every:
            return axis
    return len(every)


def _vmaps(candidate: Candidate) -> int:
    """How many vmaps are around what makes a buffer."""
    return max(map(depth, (candidate.first.name, *candidate.origin.names)), default=0)


def entries_of_pairs(candidate: Candidate) -> int:
    """For how many entries of the axes that vmap made broadcasts make pairs; 1 for no such axis."""
    return _leading(candidate, _vmaps(candidate))


def batch_of_pairs(candidate: Candidate) -> int:
    """For how many entries of leading axes broadcasts make pairs, by vmap or not; 1 for none."""
    return _leading(candidate, len(candidate.first.dims))


def _leading(candidate: Candidate, most: int) -> int:
    """The number of entries of the leading axes that pairs share, of so many axes at most."""
    alike: dict[tuple[int, ...], list[HloInstructionProto]] = {}
    for end in candidate.ends:
        if end.instruction.opcode == "broadcast":
            dims = tuple(end.instruction.shape.dimensions)
            alike.setdefault(dims, []).append(end.instruction)
    leading = (dims[: min(_shared_axes(spread), most)] for dims, spread in alike.items())
    return max(map(math.prod, leading), default=1)


def entries_of_product(candidate: Candidate) -> int:
    """For how many entries of the mapped axes a product is made; 1 for no such axis.

    Which axes are mapped is not known: at least as many as the shortest ones have. Where all axes
    are, each entry is one number.
    """
    dims = candidate.long_dims
    vmaps = _vmaps(candidate)
    return math.prod(dims[:vmaps]) if vmaps < len(dims) else 1


def fits(candidate: Candidate, entries: int) -> bool:
    """Whether one of the entries of a buffer fits into memory: fewer at a time are enough."""
    limit = candidate.facts.limit_bytes
    return limit is None or candidate.first.size_bytes // entries < limit
