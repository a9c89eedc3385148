"""Buffers that loops fill slice by slice: residuals, stacked outputs, a state in place."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hbmwatch._analysis.graph import MOVES, Graph, elements
from hbmwatch._analysis.no_batch import carried
from hbmwatch._xla.protos import HloInstructionProto, ShapeProto
from hbmwatch._xla.types import float_bits

# Copies are nested a few deep; in a damaged program they may form a ring.
MOST_STEPS = 300
_PASSES = MOVES | {"dynamic-slice", "parameter"}


@dataclass(frozen=True, slots=True)
class LoopBuffer:
    """A buffer that a loop fills, one slice per iteration.

    Attributes:
        loop: The while instruction.
        update: The instruction that writes the slice (a dynamic-update-slice, or a fusion of one).
        length: The number of slices along the dimension along which it is filled.
        from_argument: Whether the loop starts from an argument: it updates a state in place.
        context: The op_name of the loop ("jit(step)/jvp()/while"), which shows the pass.
    """

    loop: HloInstructionProto
    update: HloInstructionProto
    length: int
    from_argument: bool
    context: str

    @property
    def by_compiler(self) -> bool:
        """Whether XLA made the loop, from another operation: a triangular solve, a sort."""
        operation = self.loop.metadata.op_name.rpartition("/")[2]
        return operation not in ("", "while")


class LoopBuffers:
    """The loop buffers of a program; everything is computed on demand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[int, dict[int, tuple[int, LoopBuffer]]] = {}
        self._over_blocks: dict[int, bool] = {}

    @functools.cached_property
    def _fills(self) -> dict[int, tuple[HloInstructionProto, int]]:
        """The while and the position in its tuple, by the id of the value it starts from."""
        fills: dict[int, tuple[HloInstructionProto, int]] = {}
        for loop in self.graph.loops:
            start = self.graph.first(loop)
            if start is not None and start.opcode == "tuple":
                fills.update({part: (loop, i) for i, part in enumerate(start.operand_ids)})
        return fills

    def of(self, instruction: HloInstructionProto, index: Sequence[int]) -> LoopBuffer | None:
        """The loop that fills a buffer slice by slice; None if there is none.

        Args:
            instruction: The instruction that defines the buffer.
            index: The position of the buffer in the instruction's tuple.
        """
        if not self.graph.loops:
            return None
        start = self._enters(instruction, index)
        if start is not None:
            return self._buffer_at(*self._fills[start])
        loop, body = self.graph.loop_of(instruction)
        root = self.graph.find(body.root_id) if body is not None else None
        if loop is None or root is None:
            return None
        writes = self._writes(instruction)
        filled = self._filled(loop, len(root.operand_ids)) if writes else {}
        return min((filled[w] for w in writes if w in filled), default=(0, None))[1]

    def replaced(self, instruction: HloInstructionProto) -> HloInstructionProto | None:
        """What the body of the loop that a value enters computes as its next value; None if none.

        Args:
            instruction: The instruction that makes the value.
        """
        start = self._enters(instruction, ()) if self.graph.loops else None
        if start is None:
            return None
        loop, position = self._fills[start]
        return None if self.graph.keeps(loop, position) else self._next(loop, position)

    def _filled(
        self, loop: HloInstructionProto, positions: int
    ) -> dict[int, tuple[int, LoopBuffer]]:
        """The buffers of a loop with their positions, by the id of the dynamic-update-slice."""
        if loop.id not in self._known:
            filled: dict[int, tuple[int, LoopBuffer]] = {}
            for position in range(positions):
                found = self._buffer_at(loop, position)
                if found is not None:
                    filled.setdefault(self.graph.root(found.update).id, (position, found))
            self._known[loop.id] = filled
        return self._known[loop.id]

    def _writes(self, instruction: HloInstructionProto) -> set[int]:
        """The ids of the dynamic-update-slices that compute an instruction's results."""
        made = [self.graph.root(instruction)]
        if made[0].opcode == "tuple":
            made = [self.graph.root(part) for part in self.graph.operands(made[0])]
        return {write.id for write in made if write.opcode == "dynamic-update-slice"}

    def _enters(self, instruction: HloInstructionProto, index: Sequence[int]) -> int | None:
        """The id of the value that enters a loop: the buffer, or a copy; None if it enters none."""
        if instruction.id in self._fills and not index:
            return instruction.id
        todo = [instruction]
        if index:
            todo = [
                user
                for user in self.graph.users(instruction)
                if user.opcode == "get-tuple-element" and user.tuple_index == index[0]
            ]
        seen: set[int] = set()
        while todo:
            reached = todo.pop(0)
            if reached.id in self._fills:
                return reached.id
            if reached.id not in seen:
                seen.add(reached.id)
                users = self.graph.users(reached)
                todo += [user for user in users if user.opcode in ("copy", "bitcast")]
        return None

    def _buffer_at(self, loop: HloInstructionProto, position: int) -> LoopBuffer | None:
        """The buffer at a position of a loop's tuple, if the body writes a slice there."""
        update = self._next(loop, position)
        if update is None:
            return None
        slice_of = self.graph.root(update)
        length = self._length(slice_of) if slice_of.opcode == "dynamic-update-slice" else 0
        if length <= 1:
            return None
        start = self._start(loop, position)
        given = start is not None and self.graph.is_argument(start)
        named = slice_of.metadata.op_name or update.metadata.op_name
        context = named.rpartition("/body")[0] or loop.metadata.op_name
        return LoopBuffer(loop, update, length, given, context)

    def _next(self, loop: HloInstructionProto, position: int) -> HloInstructionProto | None:
        """What the body of a loop computes for a position of its tuple, behind copies."""
        for called in loop.called_computation_ids:
            body = self.graph.program.computations.get(called)
            root = self.graph.find(body.root_id) if body is not None else None
            if root is None or root.opcode != "tuple" or position >= len(root.operand_ids):
                continue
            made = self.graph.find(root.operand_ids[position])
            for _ in range(MOST_STEPS):
                if made is None or made.opcode not in ("copy", "bitcast", "copy-done"):
                    break
                made = self.graph.first(made)
            return made
        return None

    def _start(self, loop: HloInstructionProto, position: int) -> HloInstructionProto | None:
        """The value that a loop carries at a position at the start of the outermost loop."""
        current = self.graph.element(loop, position)
        for _ in range(MOST_STEPS):
            holder = self.graph.first(current) if current is not None else None
            if current is None or holder is None or current.opcode not in MOVES:
                break
            outer = holder
            if current.opcode == "get-tuple-element" and holder.opcode == "parameter":
                around, _ = self.graph.loop_of(holder)
                outer = around if around is not None else holder
            carried = current.opcode == "get-tuple-element" and outer.opcode == "while"
            current = self.graph.element(outer, current.tuple_index) if carried else holder
        return current

    def goes_over_blocks(self, loop: HloInstructionProto) -> bool:
        """Whether a loop computes its results one after another: lax.map, or a scan without carry.

        No iteration reads what another one computes, but for a counter.
        """
        if loop.id not in self._over_blocks:
            self._over_blocks[loop.id] = self._goes_over_blocks(loop)
        return self._over_blocks[loop.id]

    def _goes_over_blocks(self, loop: HloInstructionProto) -> bool:
        entries = loop.shape.tuple_shapes
        filled = {i for i in range(len(entries)) if self._buffer_at(loop, i) is not None}
        return bool(filled) and all(
            i in filled or elements(shape) <= 1 or self.graph.keeps(loop, i)
            for i, shape in enumerate(entries)
        )

    def carried(self, loop: HloInstructionProto) -> list[ShapeProto]:
        """The arrays of numbers that each iteration of a loop replaces."""
        return [
            shape
            for i, shape in enumerate(loop.shape.tuple_shapes)
            if elements(shape) > 1
            and float_bits(shape.element_type)
            and self._buffer_at(loop, i) is None
            and not self.graph.keeps(loop, i)
        ]

    def readers(self, filled: LoopBuffer) -> list[HloInstructionProto]:
        """What reads a buffer after the loop that fills it, in other loops too, and their insides.

        What only takes a slice of the buffer passes it on.
        """
        graph, body = self.graph, self.graph.loop_of(filled.update)[1]
        root = graph.find(body.root_id) if body is not None else None
        places = self._filled(filled.loop, len(root.operand_ids) if root is not None else 0)
        position, _ = places.get(graph.root(filled.update).id, (-1, None))
        todo = [i for i in graph.users(filled.loop) if i.tuple_index == position]
        seen, found = {i.id for i in todo}, list[HloInstructionProto]()
        while todo and len(seen) < MOST_STEPS:
            current = todo.pop()
            for user in graph.users(current):
                if user.opcode == "tuple":
                    passed = list(self._entered(user, current))
                elif graph.root(user).opcode in _PASSES:
                    passed = [user]
                else:
                    found += [user, *graph.everything_in(user)]
                    continue
                todo += [i for i in passed if i.id not in seen]
                seen |= {i.id for i in passed}
        return found

    def _entered(
        self, start: HloInstructionProto, value: HloInstructionProto
    ) -> Iterator[HloInstructionProto]:
        """What the bodies of the loops that start with a tuple get of one of its entries."""
        positions = {i for i, operand in enumerate(start.operand_ids) if operand == value.id}
        for loop in self.graph.users(start):
            if loop.opcode == "while":
                yield from (given for i, given in carried(self.graph, loop) if i in positions)

    def _length(self, update: HloInstructionProto) -> int:
        """The number of slices, along a dimension, of what a dynamic-update-slice writes.

        1 where it writes most of the array, such as all but the border.
        """
        operands = self.graph.operands(update)
        if len(operands) < 2:
            return 0
        pairs = zip(update.shape.dimensions, operands[1].shape.dimensions)
        return max((whole // part for whole, part in pairs if 0 < part < whole), default=0)

    def written(self, filled: LoopBuffer) -> HloInstructionProto:
        """The instruction whose result a loop writes into its buffer.

        A loop inside may only pass the value on.
        """
        caller = filled.update
        operands = self.graph.operands(self.graph.root(caller))
        value = operands[1] if len(operands) > 1 else caller
        for _ in range(MOST_STEPS):
            value = self.graph.copied(value) or value
            if value.opcode == "parameter":
                outside = self.graph.passed(caller, value)
                if outside is None or self.graph.fused(caller) is None:
                    break
                value, caller = outside, outside
            elif value.opcode in MOVES or not value.metadata.op_name:
                above = self.graph.first(value)
                if above is None:
                    break
                value = above
            else:
                return value
        return value if value.metadata.op_name else filled.update
