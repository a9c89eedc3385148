"""Equal large buffers at the peak, with the properties that the rules on large buffers test."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.origin import Origin, OriginInstruction, is_scalar
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings.products import (
    Product,
    find_product,
    is_softmax_input,
    reader_of_scores,
    ungathered,
)
from hbmwatch._xla.protos import HloInstructionProto


class Candidate:
    """Equal buffers at the peak; everything derived is computed on demand.

    Attributes:
        facts: The failing program.
        buffers: The buffers: all have the same shape, kind, op_name and source line.
        first: One of them, which stands for all.
        is_residual: Whether the forward pass made them for the backward pass.
    """

    def __init__(
        self, facts: ProgramFacts, buffers: Sequence[LiveBuffer], is_residual: bool = False
    ) -> None:
        self.facts = facts
        self.buffers = buffers
        self.first = buffers[0]
        self.is_residual = is_residual

    @property
    def is_square(self) -> bool:
        """Whether a buffer is a square matrix."""
        dims = self.first.dims
        return len(dims) == 2 and dims[0] == dims[1]

    @property
    def long_dims(self) -> list[int]:
        """The dimensions of a buffer in ascending order, without those of one."""
        return sorted(size for size in self.first.dims if size > 1)

    @property
    def has_all_pairs(self) -> bool:
        """Whether a buffer has as many rows as columns: it is no block of rows of a matrix."""
        return len(self.first.dims) > 1 and self.first.dims[-1] == self.first.dims[-2]

    @functools.cached_property
    def is_block(self) -> bool:
        """Whether a buffer is one block of the many that a loop goes over."""
        graph = self.facts.buffers.graph
        loop, _ = graph.loop_of(self.first.instruction)
        seen: set[int] = set()
        while loop is not None and loop.id not in seen:  # a damaged loop may be in its own body
            if self.facts.buffers.loop_buffers.goes_over_blocks(loop):
                return True
            seen.add(loop.id)
            loop, _ = graph.loop_of(loop)
        return False

    @functools.cached_property
    def uses(self) -> tuple[HloInstructionProto, ...]:
        """The instructions that read the first buffer."""
        return self.facts.buffers.uses(self.first)

    @functools.cached_property
    def origin(self) -> Origin:
        """Where the number of elements of the first buffer comes from."""
        return self.facts.buffers.origin(self.first)

    @functools.cached_property
    def ends(self) -> list[OriginInstruction]:
        """The instructions that introduced the number of elements, without broadcast scalars."""
        return [
            end
            for end in self.origin.ends
            if not is_scalar(self.facts.buffers.graph, end.instruction)
        ]

    @functools.cached_property
    def names(self) -> str:
        """The op_names of the first buffer and of its origin, joined for a search."""
        return " ".join(dict.fromkeys((self.first.name, *self.origin.names)))

    @functools.cached_property
    def is_argument(self) -> bool:
        """Whether a buffer is an argument in another form: copied, transposed or cast."""
        is_argument = self.facts.buffers.graph.is_argument
        return bool(self.ends) and all(is_argument(end.instruction) for end in self.ends)

    @functools.cached_property
    def is_identity(self) -> bool:
        """Whether a buffer compares positions along two dimensions, as jnp.eye does."""
        chain = self.origin.chain
        return (
            len(self.ends) > 1
            and "compare" in chain
            and "select" not in chain
            and all(self._is_position(end) for end in self.ends)
        )

    def _is_position(self, end: OriginInstruction) -> bool:
        """Whether an instruction numbers the entries along a dimension."""
        graph = self.facts.buffers.graph
        spread = graph.first(end.instruction) if end.instruction.opcode == "broadcast" else None
        made = end.instruction if spread is None else source_of(graph, spread, end.outer)
        # Where a dimension was split, sums of products make the number.
        return made.opcode == "iota" or made.metadata.op_name.endswith("/iota")

    @functools.cached_property
    def product(self) -> Product | None:
        """The matrix product that made the buffer, if it is much larger than its factors."""
        graph = self.facts.buffers.graph
        return find_product(graph, [ungathered(graph, end) for end in self.ends])

    @functools.cached_property
    def is_softmax_input(self) -> bool:
        """Whether a softmax reads the buffer, or computes it."""
        return is_softmax_input(self.first, self.origin, self.uses)

    @functools.cached_property
    def reader_of_scores(self) -> str:
        """What reads scores, by its name ("a softmax"); "" where an exponential and a sum do."""
        return reader_of_scores(self.origin, self.uses)
