"""Walk up from a buffer to the instructions that introduced its number of elements."""

from __future__ import annotations

from dataclasses import dataclass

from hbmwatch._analysis.graph import TUPLE, Graph, elements
from hbmwatch._xla.protos import HloInstructionProto, ShapeProto
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.types import float_bits

# It bounds the time of a report, in which every large buffer starts a walk.
MOST_VISITS = 300

Outer = tuple[HloInstructionProto, ...]


@dataclass(frozen=True, slots=True)
class OriginInstruction:
    """An instruction whose operands all have another number of elements.

    Attributes:
        instruction: The instruction.
        outer: The fusions that it is in, the outermost first.
    """

    instruction: HloInstructionProto
    outer: Outer


@dataclass(frozen=True, slots=True)
class Origin:
    """The instructions that introduced a buffer's number of elements.

    Attributes:
        ends: The instructions at which the walk ends; arguments and loops among them.
        chain: The opcodes on the way from the buffer to the ends, both included.
        names: The op_names on the way.
        narrow: The element type of a float argument among the ends that is narrower than the
            buffer's; None where there is none.
        is_cut: Whether the walk stopped early, after MOST_VISITS instructions.
    """

    ends: tuple[OriginInstruction, ...]
    chain: frozenset[str]
    names: tuple[str, ...]
    narrow: int | None = None
    is_cut: bool = False


def origin(graph: Graph, start: HloInstructionProto, count: int, element_type: int) -> Origin:
    """Walk up through instructions of the same number of elements, into fusions and out.

    Args:
        graph: The program's instructions.
        start: The instruction that makes the buffer.
        count: The buffer's number of elements.
        element_type: XLA's number of its element type.
    """
    walk = _Walk(graph, count, element_type)
    walk.run(start, ())
    ends, names = tuple(walk.ends.values()), tuple(walk.names)
    return Origin(ends, frozenset(walk.chain), names, walk.narrow, walk.is_cut)


def is_scalar(graph: Graph, instruction: HloInstructionProto) -> bool:
    """Whether an instruction is a constant or a broadcast number."""
    if instruction.opcode == "constant":
        return True
    source = graph.first(instruction)
    is_broadcast = instruction.opcode == "broadcast"
    return is_broadcast and source is not None and elements(source.shape) <= 1


class _Walk:
    """One walk from a buffer to the origin of its elements."""

    def __init__(self, graph: Graph, count: int, element_type: int) -> None:
        self.graph = graph
        self.count = count
        self.bits = float_bits(element_type) or 0
        self.ends: dict[int, OriginInstruction] = {}
        self.chain: set[str] = set()
        self.names: dict[str, None] = {}
        self.narrow: int | None = None
        self.is_cut = False

    def run(self, start: HloInstructionProto, outer: Outer) -> None:
        """Visit the instructions that have the buffer's number of elements."""
        todo = [(start, outer)]
        seen: set[tuple[int, int]] = set()
        while todo:
            instruction, within = todo.pop()
            key = (instruction.id, within[-1].id if within else 0)
            if key in seen:
                continue
            if len(seen) == MOST_VISITS:
                self.is_cut = True
                return
            seen.add(key)
            self.chain.add(instruction.opcode)
            if instruction.metadata.op_name:
                self.names[instruction.metadata.op_name] = None
            todo += self._next(instruction, within)

    def _next(
        self, instruction: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """The instructions above one; none above an end of the walk."""
        if self.graph.fused(instruction) is not None:
            root = self.graph.fused_root(instruction)
            return [(root, (*outer, instruction))] if root is not None else []
        if instruction.opcode == "parameter" and outer:
            caller = self.graph.passed(outer[-1], instruction)
            same = caller is not None and self._same(caller.shape)
            return [(caller, outer[:-1])] if caller is not None and same else []
        if instruction.opcode == "dynamic-update-slice":
            return self._written(instruction, outer)
        if instruction.opcode == "reduce":
            return self._through_reduce(instruction, outer)
        if instruction.opcode in ("while", "conditional") or self.graph.is_product(instruction):
            self._end(instruction, outer)
            return []
        operands = self.graph.operands(instruction)
        if instruction.opcode == "gather":
            operands = operands[:1]  # the index has as many elements where it selects numbers
        alike = [o for o in operands if self._same(o.shape)]
        if not alike:
            self._end(instruction, outer)
        return [(operand, outer) for operand in alike]

    def _written(
        self, instruction: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """Go on with the slice that a dynamic-update-slice writes."""
        operands = self.graph.operands(instruction)
        if len(operands) < 2:
            return []
        self.count = elements(operands[1].shape)
        return [(operands[1], outer)]

    def _through_reduce(
        self, instruction: HloInstructionProto, outer: Outer
    ) -> list[tuple[HloInstructionProto, Outer]]:
        """Go on above a reduction whose operand is never a buffer, inside of a fusion."""
        operand = self.graph.first(instruction)
        count = elements(operand.shape) if operand is not None else 0
        if operand is None or not outer or count <= self.count or operand.opcode == "parameter":
            self._end(instruction, outer)
            return []
        above = _Walk(self.graph, count, operand.shape.element_type)
        above.run(operand, outer)
        self.ends.update(above.ends)
        self.chain |= above.chain
        self.names.update(above.names)
        self.is_cut |= above.is_cut
        return []

    def _same(self, shape: ShapeProto) -> bool:
        """Whether a shape has the buffer's number of elements."""
        if shape.element_type == TUPLE:
            return any(element_count(part.dimensions) == self.count for part in shape.tuple_shapes)
        return element_count(shape.dimensions) == self.count

    def _end(self, instruction: HloInstructionProto, outer: Outer) -> None:
        """Enter an instruction at which the walk ends."""
        self.ends[instruction.id] = OriginInstruction(instruction, outer)
        element_type = instruction.shape.element_type
        if instruction.opcode == "parameter" and 0 < (float_bits(element_type) or 0) < self.bits:
            self.narrow = element_type
