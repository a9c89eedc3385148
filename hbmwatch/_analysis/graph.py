"""A program's instructions as a graph: operands, users, fusions, loops; read on demand."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hbmwatch._xla.program import Program
from hbmwatch._xla.protos import (
    BufferAllocationProto,
    HloComputationProto,
    HloInstructionProto,
    ShapeProto,
)
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.types import MemoryColor, PrimitiveType

TUPLE = PrimitiveType.TUPLE
# Instructions whose result is their first operand, in another layout, type or rank.
MOVES = frozenset(
    "bitcast copy reshape transpose convert copy-start copy-done get-tuple-element all-gather-done "
    "all-reduce-done async-start async-done bitcast-convert optimization-barrier".split()
)
_COPIES = frozenset("copy bitcast copy-start copy-done".split())
_INWARDS = frozenset("bitcast copy reshape transpose async-done".split())
# Copies and fusions are nested a few deep; in a damaged program they may form a ring.
MOST_STEPS = 300
_CALLS = frozenset(("fusion", "async-start", "call"))
# Instructions that run other computations, which may have loops.
_NESTS = frozenset(("while", "call", "conditional"))
_PLAIN = MOVES | {"parameter"}


class Parameter(NamedTuple):
    """A parameter of the program, on one device."""

    number: int
    path: str
    dims: tuple[int, ...]
    element_type: int
    size_bytes: int
    in_hbm: bool
    instruction: HloInstructionProto


class Result(NamedTuple):
    """A result of the program, and what computes it, alone or (a fusion) with the others."""

    dims: tuple[int, ...]
    element_type: int
    shape: ShapeProto
    instruction: HloInstructionProto | None


class _Scan(NamedTuple):
    """What one pass over the instructions outside of fusions finds.

    Attributes:
        running: The entry computation, and the bodies and branches that it runs.
        loops: The while instructions in them.
        first: The first user of each instruction, by the latter's id.
        others: Its other users by their ids; most instructions have none.
    """

    running: list[HloComputationProto]
    loops: list[HloInstructionProto]
    first: dict[int, HloInstructionProto]
    others: dict[int, dict[int, HloInstructionProto]]


def elements(shape: ShapeProto) -> int:
    """The number of elements of an array; of a tuple, that of its largest entry."""
    if shape.element_type == TUPLE:
        return max((elements(part) for part in shape.tuple_shapes), default=0)
    return element_count(shape.dimensions)


class Graph:
    """The instructions of one program; everything is computed on demand."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.find = program.instruction
        self._within: dict[int, list[HloInstructionProto]] = {}

    def operands(self, instruction: HloInstructionProto) -> list[HloInstructionProto]:
        """The operands of an instruction."""
        found = map(self.find, instruction.operand_ids[:])
        return [operand for operand in found if operand is not None]

    def first(self, instruction: HloInstructionProto) -> HloInstructionProto | None:
        """The first operand; None where there is none."""
        operands = instruction.operand_ids
        return self.find(operands[0]) if operands else None

    @functools.cached_property
    def _scan(self) -> _Scan:
        """One pass over the instructions outside of fusions."""
        first: dict[int, HloInstructionProto] = {}
        others: dict[int, dict[int, HloInstructionProto]] = {}
        running, loops = [], []
        todo = [self.program.entry] if self.program.entry is not None else []
        seen: set[int] = set()
        for computation in todo:  # grows meanwhile; a damaged program may have a ring
            if computation.id in seen:
                continue
            seen.add(computation.id)
            running.append(computation)
            for instruction in self.program.inside(computation):
                if instruction.opcode in _NESTS:
                    loops += [instruction] if instruction.opcode == "while" else []
                    called = map(self.program.computations.get, instruction.called_computation_ids)
                    todo += [inner for inner in called if inner is not None]
                for operand in instruction.operand_ids[:]:  # a list is quicker to go through
                    if operand not in first:
                        first[operand] = instruction
                    elif first[operand] is not instruction:
                        others.setdefault(operand, {})[instruction.id] = instruction
        return _Scan(running, loops, first, others)

    @property
    def running(self) -> Sequence[HloComputationProto]:
        """The entry computation, and the bodies and branches that it runs."""
        return self._scan.running

    @property
    def loops(self) -> Sequence[HloInstructionProto]:
        """The while instructions of the entry computation, and those inside of them."""
        return self._scan.loops

    def users(self, instruction: HloInstructionProto) -> list[HloInstructionProto]:
        """The users of an instruction, outside of fusions."""
        first = self._scan.first.get(instruction.id)
        others = self._scan.others.get(instruction.id, {})
        return [] if first is None else [first, *others.values()]

    # --- fusions ----------------------------------------------------------------------------------

    def fused(self, instruction: HloInstructionProto) -> HloComputationProto | None:
        """The computation inside a fusion (or an async call); None for other instructions."""
        if instruction.opcode not in _CALLS:
            return None
        called = instruction.called_computation_ids
        return self.program.computations.get(called[0]) if called else None

    def fused_root(self, instruction: HloInstructionProto) -> HloInstructionProto | None:
        """The root of the computation inside a fusion; None for other instructions."""
        inner = self.fused(instruction)
        return self.find(inner.root_id) if inner is not None else None

    def passed(
        self, caller: HloInstructionProto, parameter: HloInstructionProto
    ) -> HloInstructionProto | None:
        """The operand of a fusion that becomes one of its parameters; None where there is none."""
        if not 0 <= parameter.parameter_number < len(caller.operand_ids):
            return None
        return self.find(caller.operand_ids[parameter.parameter_number])

    def everything_in(self, instruction: HloInstructionProto) -> list[HloInstructionProto]:
        """The instructions inside a fusion and inside the fusions in it."""
        outer = self.fused(instruction)
        if outer is None:
            return []
        if outer.id not in self._within:
            found = self._within[outer.id] = list[HloInstructionProto]()
            calls, entered = [instruction], set[int]()
            for call in calls:  # grows meanwhile; a damaged program may have a ring
                inner = self.fused(call)
                if inner is not None and inner.id not in entered:
                    entered.add(inner.id)
                    found += self.program.inside(inner)
                    calls += [i for i in self.program.inside(inner) if i.opcode in _CALLS]
        return self._within[outer.id]

    def root(self, instruction: HloInstructionProto) -> HloInstructionProto:
        """The instruction that computes a result inside of a fusion, behind bitcasts and copies.

        For a get-tuple-element of a fusion, the instruction that computes that result; outside of
        fusions, the instruction itself.
        """
        found = instruction
        for _ in range(MOST_STEPS):
            deeper = self._inwards(found)
            if deeper is None or deeper.opcode == "parameter":
                break
            found = deeper
        return found

    def _inwards(self, current: HloInstructionProto) -> HloInstructionProto | None:
        """One step into a fusion, or behind a move; None where there is none."""
        if current.opcode == "get-tuple-element":
            fusion = self.first(current)
            if fusion is None or self.fused(fusion) is None:
                return None
            return self.element(fusion, current.tuple_index)
        if current.opcode in _INWARDS:
            return self.first(current)
        return self.fused_root(current)

    def element(self, source: HloInstructionProto, index: int) -> HloInstructionProto | None:
        """The instruction that computes an entry of a tuple; of a loop, its value at the start."""
        holder = self.fused_root(source) if self.fused(source) is not None else source
        if holder is not None and holder.opcode == "while":
            holder = self.first(holder)
        if holder is None or holder.opcode != "tuple" or index >= len(holder.operand_ids):
            return None
        return self.find(holder.operand_ids[index])

    # --- loops ------------------------------------------------------------------------------------

    @functools.cached_property
    def _looped(self) -> dict[int, tuple[HloInstructionProto, HloComputationProto]]:
        """The loop around an instruction, and its body or condition, by the instruction's id."""
        owners = {
            called: loop for loop in reversed(self.loops) for called in loop.called_computation_ids
        }
        found = {}
        for called, loop in owners.items():
            body = self.program.computations.get(called)
            if body is None:
                continue
            for instruction in self.program.inside(body):
                found[instruction.id] = loop, body
                if instruction.opcode in ("async-start", "call"):
                    inside = self.everything_in(instruction)
                    found |= {inner.id: (loop, body) for inner in inside}
        return found

    def loop_of(
        self, instruction: HloInstructionProto
    ) -> tuple[HloInstructionProto | None, HloComputationProto | None]:
        """The loop whose body has the instruction, and the body; None and None outside of loops."""
        return self._looped.get(instruction.id, (None, None))

    def start(self, loop: HloInstructionProto, position: int) -> HloInstructionProto | None:
        """The value that a loop carries at a position when it starts, behind moves."""
        current = self.element(loop, position)
        for _ in range(MOST_STEPS):
            if current is None or current.opcode not in MOVES:
                break
            current = self.first(current)
        return current

    def keeps(
        self, loop: HloInstructionProto, position: int, within: frozenset[int] = frozenset()
    ) -> bool:
        """Whether the body of a loop passes on the value at a position of its tuple unchanged.

        Args:
            loop: The while instruction.
            position: The position.
            within: The ids of the loops whose bodies it is in, where one of them asks.
        """
        for called in loop.called_computation_ids:
            body = self.program.computations.get(called)
            root = self.find(body.root_id) if body is not None else None
            if root is None or root.opcode != "tuple" or position >= len(root.operand_ids):
                continue
            passed = self.copied(self.find(root.operand_ids[position]), within | {loop.id})
            if passed is None or passed.opcode != "get-tuple-element":
                return False
            holder = self.first(passed)
            given = holder is not None and holder.opcode == "parameter"
            return given and passed.tuple_index == position
        return False

    def copied(
        self, instruction: HloInstructionProto | None, within: frozenset[int] = frozenset()
    ) -> HloInstructionProto | None:
        """The value that is only copied, or passed through loops, up to an instruction.

        Args:
            instruction: The instruction.
            within: The ids of the loops whose bodies it is in.
        """
        current = instruction
        for _ in range(MOST_STEPS):
            if current is None:
                break
            holder = self.first(current)
            if current.opcode in _COPIES:
                current = holder
            elif (
                current.opcode == "get-tuple-element"
                and holder is not None
                and holder.opcode == "while"
                and holder.id not in within
                and self.keeps(holder, current.tuple_index, within)
            ):
                current = self.element(holder, current.tuple_index)
            else:
                break
        return current

    # --- what instructions are --------------------------------------------------------------------

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the program, by number; paths are "" where it does not name them."""
        found = {}
        for allocation in self.program.allocations:
            if not allocation.is_entry_computation_parameter:
                continue
            instruction = self._parameter_in(allocation)
            if instruction is not None:
                number, shape = instruction.parameter_number, instruction.shape
                found[number] = Parameter(
                    number,
                    instruction.metadata.op_name,
                    tuple(shape.dimensions),
                    shape.element_type,
                    allocation.size,
                    allocation.color == MemoryColor.HBM,
                    instruction,
                )
        return tuple(found[number] for number in sorted(found))

    def _parameter_in(self, allocation: BufferAllocationProto) -> HloInstructionProto | None:
        """The parameter in an allocation, which an output may share."""
        for assigned in allocation.assigned:
            buffer = self.program.buffer(assigned.logical_buffer_id)
            if buffer is not None and buffer.instruction.opcode == "parameter":
                return buffer.instruction
        return None

    @functools.cached_property
    def results(self) -> tuple[Result, ...]:
        """The results of the program, in order; one where it is no tuple."""
        entry = self.program.entry
        root = self.find(entry.root_id) if entry is not None else None
        if root is None:
            return ()
        parts = list(root.shape.tuple_shapes) or [root.shape]
        makers: list[HloInstructionProto | None] = [root] * len(parts)
        if root.opcode == "tuple":
            makers = [self.find(operand) for operand in root.operand_ids]
        return tuple(
            Result(tuple(part.dimensions), part.element_type, part, maker)
            for part, maker in zip(parts, makers)
        )

    @functools.cached_property
    def argument_ids(self) -> dict[int, int]:
        """The number of each of the program's parameters, by the instruction's id."""
        return {parameter.instruction.id: parameter.number for parameter in self.parameters}

    def is_argument(self, instruction: HloInstructionProto) -> bool:
        """Whether an instruction is a parameter of the program itself."""
        return instruction.id in self.argument_ids

    def given(
        self, factor: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
    ) -> HloInstructionProto | None:
        """The argument of the program that a value is, behind moves; None where it is none.

        Args:
            factor: The instruction.
            outer: The fusions that it is in, outermost first.
        """
        current: HloInstructionProto | None = factor
        for _ in range(MOST_STEPS):
            if current is None:
                break
            inner = self.fused(current)
            if current.opcode == "parameter" and outer:
                current, outer = self.passed(outer[-1], current), outer[:-1]
            elif current.opcode in MOVES or (
                inner is not None and {i.opcode for i in self.program.inside(inner)} <= _PLAIN
            ):
                current = self.first(current)
            else:
                return current if self.is_argument(current) else None
        return None

    @staticmethod
    def is_product(instruction: HloInstructionProto) -> bool:
        """Whether an instruction is a matrix product, under any of its names."""
        if instruction.opcode == "dot":
            return True
        named = instruction.metadata.op_name.endswith("dot_general")
        if instruction.opcode == "convolution":
            return named
        target = instruction.custom_call_target
        return instruction.opcode == "custom-call" and (
            named or "gemm" in target or "matmul" in target
        )


def joined_names(instructions: Iterable[HloInstructionProto]) -> str:
    """The op_names of instructions, joined, for a search."""
    return " ".join(i.metadata.op_name for i in instructions if i.metadata.op_name)
