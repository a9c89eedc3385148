"""Where a buffer's number of elements came into being."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hbmwatch._analysis.graph import TUPLE, Graph, elements
from hbmwatch._xla.protos import HloInstructionProto, ShapeProto

# XLA's numbers of the float types, with their bits.
FLOAT_BITS = {10: 16, 16: 16, 11: 32, 12: 64, 19: 8, 20: 8}
_VISITS = 300

Outer = tuple[HloInstructionProto, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An instruction whose operands are all of another size, and the fusions that it is in."""

    instruction: HloInstructionProto
    outer: Outer


@dataclass(frozen=True, slots=True)
class Origin:
    """The instructions in which a buffer's number of elements came into being.

    Attributes:
        leaves: Where the way from the buffer upwards ends; arguments and loops among them.
        chain: The opcodes on the way from the buffer to the leaves, both included.
        names: The op_names on the way.
        narrow: The element type of a float argument among the leaves that is narrower than the
            buffer's; None where there is none.
    """

    leaves: tuple[Leaf, ...]
    chain: frozenset[str]
    names: tuple[str, ...]
    narrow: int | None = None


def origin(graph: Graph, start: HloInstructionProto, count: int, element_type: int) -> Origin:
    """Walks up through instructions of the same number of elements, into fusions and out.

    Args:
        graph: The program's instructions.
        start: The instruction that makes the buffer.
        count: The buffer's number of elements.
        element_type: XLA's number of its element type.
    """
    walk = _Walk(graph, count, element_type)
    walk.run(start, ())
    leaves, names = tuple(walk.leaves.values()), tuple(walk.names)
    return Origin(leaves, frozenset(walk.chain), names, walk.narrow)


class _Walk:
    """One walk from a buffer to the origin of its elements."""

    def __init__(self, graph: Graph, count: int, element_type: int) -> None:
        self.graph = graph
        self.count = count
        self.bits = FLOAT_BITS.get(element_type, 0)
        self.leaves: dict[int, Leaf] = {}
        self.chain: set[str] = set()
        self.names: dict[str, None] = {}
        self.narrow: int | None = None

    def run(self, start: HloInstructionProto, outer: Outer) -> None:
        """Visit what has the buffer's number of elements."""
        todo = [(start, outer)]
        seen: set[tuple[int, int]] = set()
        while todo and len(seen) < _VISITS:
            at, within = todo.pop()
            key = (at.id, within[-1].id if within else 0)
            if key in seen:
                continue
            seen.add(key)
            self.chain.add(at.opcode)
            if at.metadata.op_name:
                self.names[at.metadata.op_name] = None
            todo += self._next(at, within)

    def _next(
        self, at: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """Where to go from an instruction; a leaf goes nowhere."""
        if self.graph.fused(at) is not None:
            root = self.graph.fused_root(at)
            return [(root, (*outer, at))] if root is not None else []
        if at.opcode == "parameter" and outer:
            caller = self.graph.passed(outer[-1], at)
            same = caller is not None and self._same(caller.shape)
            return [(caller, outer[:-1])] if caller is not None and same else []
        if at.opcode == "dynamic-update-slice":
            return self._written(at, outer)
        if at.opcode == "reduce":
            return self._through_reduce(at, outer)
        if at.opcode in ("while", "conditional") or self.graph.is_product(at):
            self._leaf(at, outer)
            return []
        alike = [o for o in self.graph.operands(at) if self._same(o.shape)]
        if not alike:
            self._leaf(at, outer)
        return [(operand, outer) for operand in alike]

    def _written(
        self, at: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """Go on with what a dynamic-update-slice writes."""
        operands = self.graph.operands(at)
        if len(operands) < 2:
            return []
        self.count = elements(operands[1].shape)
        return [(operands[1], outer)]

    def _through_reduce(
        self, at: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """Go on above a reduction, where its operand is never a buffer of its own."""
        operand = self.graph.first(at)
        count = elements(operand.shape) if operand is not None else 0
        if operand is None or not outer or count <= self.count or operand.opcode == "parameter":
            self._leaf(at, outer)
            return []
        above = _Walk(self.graph, count, operand.shape.element_type)
        above.run(operand, outer)
        self.leaves.update(above.leaves)
        self.chain |= above.chain
        self.names.update(above.names)
        return []

    def _same(self, shape: ShapeProto) -> bool:
        """Whether a shape has the buffer's number of elements."""
        if shape.element_type == TUPLE:
            return any(math.prod(part.dimensions) == self.count for part in shape.tuple_shapes)
        return math.prod(shape.dimensions) == self.count

    def _leaf(self, at: HloInstructionProto, outer: Outer) -> None:
        """Enter a leaf."""
        self.leaves[at.id] = Leaf(at, outer)
        bits = FLOAT_BITS.get(at.shape.element_type, 0)
        if at.opcode == "parameter" and 0 < bits < self.bits:
            self.narrow = at.shape.element_type
