"""Where the buffers at a program's peak come from: names, origins, loop stacks, uses.

Everything is found by walking operands and users of the instructions whose buffers are live, never
the whole module, so that a large program costs no more than its peak.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hbmwatch._hlo import Program, source_of
from hbmwatch._protos import HloComputationProto, HloInstructionProto, ShapeProto
from hbmwatch._records import PeakOp, PeakSummary

F32, BF16, F16, PRED, U32 = 11, 16, 10, 1, 8
FLOAT_BITS = {10: 16, 16: 16, 11: 32, 12: 64, 19: 8, 20: 8}
TUPLE = 13
# Instructions that give their first operand back, with other layout, type or rank.
_MOVES = frozenset(
    "bitcast copy reshape transpose convert copy-start copy-done get-tuple-element all-gather-done "
    "all-reduce-done async-start async-done bitcast-convert optimization-barrier".split()
)
_PLAIN = _MOVES | {"parameter"}
_VISITS = 300
_CHECKPOINT = re.compile(r"(^|/)(checkpoint|rematted_computation)(/|$)")
_WHILE = re.compile(r"(^|/)while(/|$)")


Family = tuple[tuple[int, ...], int, str, str]


@dataclass(frozen=True, slots=True)
class Stack:
    """A buffer that a loop fills, one slice an iteration.

    Attributes:
        loop: The while instruction.
        update: The instruction that writes the slice (a dynamic-update-slice, or a fusion of one).
        length: The length of the dimension along which it is filled.
        from_argument: Whether the loop starts from an argument, and so updates a state.
    """

    loop: HloInstructionProto
    update: HloInstructionProto
    length: int
    from_argument: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """The instructions in which a buffer's number of elements came into being.

    Attributes:
        leaves: The instructions whose operands are all of another size; arguments and loop
            carries among them.
        chain: The opcodes on the way from the buffer to the leaves, both included.
        names: The op_names on the way.
        narrow: The element type of a float argument among the leaves that is narrower than the
            buffer's; None where there is none.
    """

    leaves: tuple[HloInstructionProto, ...]
    chain: frozenset[str]
    names: tuple[str, ...]
    narrow: int | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """A buffer at the peak, with what the program tells about it.

    Attributes:
        op: The buffer.
        instruction: The instruction that defines it.
        element_type: XLA's number of the element type.
        dims: The dimensions on one device.
        name: Its op_name, or the one that was inferred.
        source: The line that made it ("train.py:88"), its own or inferred.
        inferred: Whether name and source are inferred.
        stack: The loop that fills it; None where there is none.
    """

    op: PeakOp
    instruction: HloInstructionProto
    element_type: int
    dims: tuple[int, ...]
    name: str
    source: str
    inferred: bool
    stack: Stack | None

    @property
    def size_bytes(self) -> int:
        """Bytes on the device."""
        return self.op.size_bytes

    @property
    def family(self) -> Family:
        """What buffers of the same code have in common."""
        return self.dims, self.element_type, self.name, self.source

    @property
    def forward(self) -> bool:
        """Whether it was made by the forward pass of a differentiated function."""
        return is_forward(self.name)


def is_forward(op_name: str) -> bool:
    """Whether an op_name is of a forward pass under reverse mode, or its recomputation."""
    return "jvp(" in op_name and ("transpose(" not in op_name or is_recomputed(op_name))


def is_backward(op_name: str) -> bool:
    """Whether an op_name is of a backward pass."""
    return "transpose(" in op_name and not is_recomputed(op_name)


def is_recomputed(op_name: str) -> bool:
    """Whether an op_name is of what jax.checkpoint computes again."""
    return "rematted_computation" in op_name


def elements(shape: ShapeProto) -> int:
    """How many elements an array has; of a tuple, its largest entry."""
    if shape.element_type == TUPLE:
        return max((elements(part) for part in shape.tuple_shapes), default=0)
    return math.prod(shape.dimensions)


class Flow:
    """The dataflow around a program's memory peak; everything is made on demand."""

    def __init__(self, program: Program, summary: PeakSummary) -> None:
        self.program = program
        self.summary = summary

    @functools.cached_property
    def placed(self) -> dict[str, HloInstructionProto]:
        """The instructions that can own a buffer, by name: all outside of fusions."""
        return {
            instruction.name: instruction
            for computation in self.program.proto.hlo_module.computations
            if not computation.is_fusion_computation
            for instruction in computation.instructions
        }

    @functools.cached_property
    def users(self) -> dict[int, list[HloInstructionProto]]:
        """The instructions outside of fusions that use an instruction, by the latter's id."""
        users: dict[int, list[HloInstructionProto]] = {}
        for instruction in self.placed.values():
            for operand in instruction.operand_ids:
                users.setdefault(operand, []).append(instruction)
        return users

    @functools.cached_property
    def order(self) -> dict[int, int]:
        """The place of the entry computation's instructions in its order, by id."""
        entry = self.program.entry
        instructions = entry.instructions if entry is not None else ()
        return {instruction.id: place for place, instruction in enumerate(instructions)}

    @functools.cached_property
    def op_names(self) -> frozenset[str]:
        """All op_names outside of fusions."""
        return frozenset(i.metadata.op_name for i in self.placed.values())

    @functools.cached_property
    def differentiated(self) -> bool:
        """Whether the program has a backward pass."""
        return any("transpose(" in name for name in self.op_names)

    @functools.cached_property
    def checkpointed(self) -> bool:
        """Whether a part of the program is under jax.checkpoint."""
        return any(_CHECKPOINT.search(name) for name in self.op_names)

    @functools.cached_property
    def fills(self) -> dict[int, tuple[HloInstructionProto, int]]:
        """For what a while starts from: the while and the position in its tuple, by id."""
        fills: dict[int, tuple[HloInstructionProto, int]] = {}
        for loop in self.placed.values():
            if loop.opcode != "while":
                continue
            for start in self.program.operands(loop):
                if start.opcode == "tuple":
                    fills.update({part: (loop, i) for i, part in enumerate(start.operand_ids)})
        return fills

    @functools.cached_property
    def live(self) -> tuple[Live, ...]:
        """The buffers at the peak whose instruction is known, in program order."""
        found = (self._live(op) for op in self.summary.ops)
        return tuple(live for live in found if live is not None)

    @functools.cached_property
    def families(self) -> Counter[Family]:
        """How many buffers at the peak are of one family."""
        return Counter(live.family for live in self.live)

    def _live(self, op: PeakOp) -> Live | None:
        """One buffer with what is known about it; None for the row of small ones."""
        name, _, rest = op.instruction.partition("{")
        instruction = self.placed.get(name)
        if instruction is None:
            return None
        index = [int(i) for i in rest.rstrip("}").split(",") if i.strip().isdigit()]
        shape = instruction.shape
        for i in index:
            shape = shape.tuple_shapes[i] if i < len(shape.tuple_shapes) else shape
        stack = self.stack(instruction, index) if op.kind != "parameter" else None
        named, source, inferred = self._name(op, instruction, stack)
        dims = tuple(shape.dimensions)
        return Live(op, instruction, shape.element_type, dims, named, source, inferred, stack)

    # --- names ------------------------------------------------------------------------------------

    def _name(
        self, op: PeakOp, instruction: HloInstructionProto, stack: Stack | None
    ) -> tuple[str, str, bool]:
        """op_name and source of a buffer, and whether they are inferred.

        A loop stack takes them from what the loop writes into it, even where it has its own: XLA
        names the empty buffer after the zeros that it starts from.
        """
        if stack is not None:
            written = self.written(stack)
            if written.metadata.op_name:
                return written.metadata.op_name, source_of(self.program.frames(written)), True
        if op.op_name or op.kind == "parameter":
            return op.op_name, op.source, False
        found = self._named(instruction)
        if found is None:
            return "", op.source, False
        return found.metadata.op_name, op.source or source_of(self.program.frames(found)), True

    def _named(self, instruction: HloInstructionProto) -> HloInstructionProto | None:
        """The nearest instruction with an op_name: inside, above, then among the users."""
        seen: set[int] = set()
        todo = [instruction]
        while todo and len(seen) < _VISITS:
            at = todo.pop(0)
            if at.id in seen:
                continue
            seen.add(at.id)
            if at.metadata.op_name and at.opcode != "parameter":
                return at
            inner = self.fused(at)
            named = [i for i in inner.instructions if i.metadata.op_name] if inner else []
            if named:
                return named[-1]
            todo += self.program.operands(at)
        users = (user for user in self.users.get(instruction.id, ()) if user.metadata.op_name)
        return next(users, None)

    def written(self, stack: Stack) -> HloInstructionProto:
        """The instruction whose result a loop writes into its stack."""
        update = stack.update
        root = self.root(update)
        if root.opcode != "dynamic-update-slice" or len(root.operand_ids) < 2:
            return update
        value = self.program.instructions.get(root.operand_ids[1], update)
        for _ in range(_VISITS):
            if value.opcode == "parameter":
                caller = self.passed(update, value)
                if caller is None:
                    break
                value, update = caller, caller
            elif value.opcode in _MOVES or not value.metadata.op_name:
                operands = self.program.operands(value)
                if not operands:
                    break
                value = operands[0]
            else:
                return value
        return value if value.metadata.op_name else stack.update

    def passed(
        self, caller: HloInstructionProto, parameter: HloInstructionProto
    ) -> HloInstructionProto | None:
        """What a fusion passes for one of its parameters; None where it passes nothing."""
        if caller.opcode != "fusion" or parameter.parameter_number >= len(caller.operand_ids):
            return None
        return self.program.instructions.get(caller.operand_ids[parameter.parameter_number])

    # --- fusions and loops ------------------------------------------------------------------------

    def fused(self, instruction: HloInstructionProto) -> HloComputationProto | None:
        """The computation inside a fusion (or an async call); None for other instructions."""
        if instruction.opcode not in ("fusion", "async-start", "call"):
            return None
        called = instruction.called_computation_ids
        return self.program.computations.get(called[0]) if called else None

    def root(self, instruction: HloInstructionProto) -> HloInstructionProto:
        """What makes a result inside a fusion, behind bitcasts and copies; itself elsewhere.

        Of a get-tuple-element of a fusion with several results, what makes that one.
        """
        found = instruction
        for _ in range(_VISITS):
            deeper = self._inside(found)
            if deeper is None or deeper.opcode == "parameter":
                break
            found = deeper
        return found

    def _inside(self, at: HloInstructionProto) -> HloInstructionProto | None:
        """One step inwards, or behind a move that is inside; None where there is none."""
        instructions = self.program.instructions
        if at.opcode == "get-tuple-element":
            fusion = next(iter(self.program.operands(at)), None)
            known = fusion is not None and self.fused(fusion) is not None
            return self.element(fusion, at.tuple_index) if fusion is not None and known else None
        inner = self.fused(at)
        if inner is not None:
            return instructions.get(inner.root_id)
        if at.opcode in ("bitcast", "copy", "reshape", "transpose"):
            return next(iter(self.program.operands(at)), None)
        return None

    def element(self, source: HloInstructionProto, index: int) -> HloInstructionProto | None:
        """What makes one entry of a tuple: in a fusion, or what a loop starts from there."""
        inner = self.fused(source)
        holder = self.program.instructions.get(inner.root_id) if inner is not None else source
        if holder is not None and holder.opcode == "while":
            holder = next(iter(self.program.operands(holder)), None)
        if holder is None or holder.opcode != "tuple" or index >= len(holder.operand_ids):
            return None
        return self.program.instructions.get(holder.operand_ids[index])

    def stack(self, instruction: HloInstructionProto, index: Sequence[int] = ()) -> Stack | None:
        """The loop that fills a buffer slice by slice; None where none does.

        Args:
            instruction: The instruction that defines the buffer.
            index: The place of the buffer in the instruction's tuple.
        """
        start = self._enters(instruction, index)
        if start is not None:
            return self._stack_of(*self.fills[start])
        computation = self.program.computation_of[instruction.id]
        loops = [c for c in self._callers.get(computation.id, ()) if c.opcode == "while"]
        body_root = self.program.instructions.get(computation.root_id)
        if not loops or body_root is None:
            return None
        mine = {instruction.id, *(user.id for user in self.users.get(instruction.id, ()))}
        for position, part in enumerate(body_root.operand_ids):
            stack = self._stack_of(loops[0], position) if part in mine else None
            if stack is not None and elements(self.root(stack.update).shape) == elements(
                instruction.shape
            ):
                return stack
        return None

    def _enters(self, instruction: HloInstructionProto, index: Sequence[int]) -> int | None:
        """The id as which a buffer enters a loop, behind moves; None where it enters none."""
        todo = [instruction]
        if index:
            todo = [user for user in self.users.get(instruction.id, ())
                    if user.opcode == "get-tuple-element" and user.tuple_index == index[0]]
        for _ in range(8):
            if not todo:
                return None
            for at in todo:
                if at.id in self.fills:
                    return at.id
            todo = [user for at in todo for user in self.users.get(at.id, ())
                    if user.opcode in ("copy", "bitcast")]
        return None

    @functools.cached_property
    def _callers(self) -> dict[int, list[HloInstructionProto]]:
        """The instructions outside of fusions that call a computation, by its id."""
        callers: dict[int, list[HloInstructionProto]] = {}
        for instruction in self.placed.values():
            for called in instruction.called_computation_ids:
                callers.setdefault(called, []).append(instruction)
        return callers

    def _updates(self, instruction: HloInstructionProto) -> bool:
        """Whether an instruction writes a slice into its operand."""
        return self.root(instruction).opcode == "dynamic-update-slice"

    def _stack_of(self, loop: HloInstructionProto, position: int) -> Stack | None:
        """The stack at a position of a loop's tuple, if the body writes a slice there."""
        bodies = [self.program.computations.get(c) for c in loop.called_computation_ids]
        for body in bodies:
            root = self.program.instructions.get(body.root_id) if body is not None else None
            if root is None or root.opcode != "tuple" or position >= len(root.operand_ids):
                continue
            update = self.program.instructions.get(root.operand_ids[position])
            for _ in range(8):
                if update is None or update.opcode not in ("copy", "bitcast", "copy-done"):
                    break
                update = next(iter(self.program.operands(update)), None)
            if update is None or not self._updates(update):
                continue
            length = self._length(self.root(update))
            if length > 1:
                return Stack(loop, update, length, self._starts_from_argument(loop, position))
        return None

    def _length(self, update: HloInstructionProto) -> int:
        """The length of the dimension of which a dynamic-update-slice writes one entry."""
        value = self.program.instructions.get(update.operand_ids[1])
        if value is None or len(value.shape.dimensions) != len(update.shape.dimensions):
            return 0
        pairs = zip(update.shape.dimensions, value.shape.dimensions)
        return max((whole for whole, part in pairs if part < whole), default=0)

    def _starts_from_argument(self, loop: HloInstructionProto, position: int) -> bool:
        """Whether what a loop carries at a position begins as an argument of the program."""
        start = next(iter(self.program.operands(loop)), None)
        if start is None or start.opcode != "tuple" or position >= len(start.operand_ids):
            return False
        at = self.program.instructions.get(start.operand_ids[position])
        for _ in range(_VISITS):
            if at is None or at.opcode not in _MOVES:
                break
            at = next(iter(self.program.operands(at)), None)
        return at is not None and at.opcode == "parameter"

    # --- origins and uses -------------------------------------------------------------------------

    def origin(self, live: Live) -> Origin:
        """Where the number of elements of a buffer came into being.

        Walks up through instructions of the same number of elements, into fusions and out.
        """
        start = live.instruction if live.stack is None else live.stack.update
        walk = _Walk(self, math.prod(live.dims), live.element_type)
        walk.run(start)
        return walk.origin()

    def uses(self, live: Live) -> tuple[HloInstructionProto, ...]:
        """The instructions that read a buffer, behind copies and tuples, with those in fusions."""
        seen: set[int] = set()
        todo = [live.instruction]
        found: list[HloInstructionProto] = []
        while todo and len(seen) < 60:
            at = todo.pop()
            for user in self.users.get(at.id, ()):
                if user.id in seen:
                    continue
                seen.add(user.id)
                found.append(user)
                found += self._everything_in(user)
                if user.opcode in _MOVES:
                    todo.append(user)
        return tuple(found)

    def _everything_in(self, instruction: HloInstructionProto) -> list[HloInstructionProto]:
        """The instructions inside a fusion and the fusions in it."""
        inner = self.fused(instruction)
        if inner is None:
            return []
        found = list(inner.instructions)
        return found + [deep for i in inner.instructions for deep in self._everything_in(i)]

    def readers(self, live: Live) -> set[int]:
        """The ids of the instructions that read a buffer's bytes, rewritten in place or not."""
        seen: set[int] = set()
        todo = [live.instruction]
        count = math.prod(live.dims)
        while todo and len(seen) < _VISITS:
            for user in self.users.get(todo.pop().id, ()):
                if user.id not in seen:
                    seen.add(user.id)
                    todo += [user] if elements(user.shape) == count else []
        return seen

    def argument_of(self, instruction: HloInstructionProto) -> str:
        """The path of the argument that an instruction's result is a form of; "" if none."""
        at: HloInstructionProto | None = instruction
        for _ in range(_VISITS):
            if at is None:
                return ""
            if at.opcode == "parameter":
                return at.metadata.op_name if self.is_argument(at) else self._carried(at)
            at = max(self.program.operands(at), key=lambda o: elements(o.shape), default=None)
        return ""

    def _carried(self, parameter: HloInstructionProto) -> str:
        """The argument with the most bytes that a loop body's parameter begins as."""
        computation = self.program.computation_of[parameter.id]
        for loop in self._callers.get(computation.id, ()):
            start = next(iter(self.program.operands(loop)), None)
            parts = self.program.operands(start) if start is not None else ()
            best = max(parts, key=lambda o: elements(o.shape), default=None)
            if best is not None and best.opcode == "parameter":
                return best.metadata.op_name
        return ""

    def is_given(self, factor: HloInstructionProto, inside: HloInstructionProto) -> bool:
        """Whether a factor of a product is an argument of the program, but for moves.

        Args:
            factor: The factor.
            inside: The product; it may be in a fusion, whose parameters are followed outwards.
        """
        computation = self.program.computation_of[inside.id]
        for _ in range(_VISITS):
            inner = self.fused(factor)
            if factor.opcode in _MOVES and factor.operand_ids:
                factor = self.program.instructions.get(factor.operand_ids[0], factor)
            elif inner is not None and {i.opcode for i in inner.instructions} <= _PLAIN:
                factor = self.program.instructions.get(factor.operand_ids[0], factor)
            elif factor.opcode == "parameter" and not self.is_argument(factor):
                callers = self.program.callers.get(computation.id, ())
                if len(callers) != 1 or self.fused(callers[0]) is None:
                    return False
                outside = self.passed(callers[0], factor)
                computation = self.program.computation_of[callers[0].id]
                if outside is None:
                    return False
                factor = outside
            else:
                break
        return factor.opcode == "parameter" and self.is_argument(factor)

    def is_argument(self, instruction: HloInstructionProto) -> bool:
        """Whether an instruction is a parameter of the program itself."""
        mine = self.program.parameters.get(instruction.parameter_number)
        return mine is not None and mine.id == instruction.id

    def is_product(self, instruction: HloInstructionProto) -> bool:
        """Whether an instruction is a matrix product, under any of its names."""
        if instruction.opcode == "dot":
            return True
        named = instruction.metadata.op_name.endswith("dot_general")
        if instruction.opcode == "convolution":
            return named
        return instruction.opcode == "custom-call" and (
            named or "gemm" in instruction.custom_call_target
            or "matmul" in instruction.custom_call_target
        )

    def all_inside(self, instructions: Iterable[HloInstructionProto]) -> str:
        """The op_names of instructions, joined, for a search."""
        return " ".join(i.metadata.op_name for i in instructions if i.metadata.op_name)


class _Walk:
    """One walk from a buffer to the origin of its elements."""

    def __init__(self, flow: Flow, count: int, element_type: int) -> None:
        self.flow = flow
        self.program = flow.program
        self.count = count
        self.bits = FLOAT_BITS.get(element_type, 0)
        self.leaves: dict[int, HloInstructionProto] = {}
        self.chain: set[str] = set()
        self.names: dict[str, None] = {}
        self.narrow: int | None = None

    def run(
        self, start: HloInstructionProto, outer: tuple[HloInstructionProto, ...] = ()
    ) -> None:
        """Visit what has the buffer's number of elements."""
        todo: list[tuple[HloInstructionProto, tuple[HloInstructionProto, ...]]] = [(start, outer)]
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
        self, at: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
    ) -> list[tuple[HloInstructionProto, tuple[HloInstructionProto, ...]]]:
        """Where to go from an instruction; a leaf goes nowhere."""
        inner = self.flow.fused(at)
        if inner is not None:
            root = self.program.instructions.get(inner.root_id)
            return [(root, (*outer, at))] if root is not None else []
        if at.opcode == "parameter" and outer:
            caller = self.flow.passed(outer[-1], at)
            if caller is not None and self._same(caller):
                return [(caller, outer[:-1])]
            return []
        if at.opcode == "dynamic-update-slice":
            value = self.program.instructions.get(at.operand_ids[1]) if at.operand_ids else None
            self.count = elements(value.shape) if value is not None else self.count
            return [(value, outer)] if value is not None else []
        if at.opcode in ("while", "conditional") or self.flow.is_product(at):
            self._leaf(at)
            return []
        if at.opcode == "reduce":
            return self._through_reduce(at, outer)
        same = [o for o in self.program.operands(at) if self._same(o)]
        if not same:
            self._leaf(at)
        return [(operand, outer) for operand in same]

    def _through_reduce(
        self, at: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
    ) -> list[tuple[HloInstructionProto, tuple[HloInstructionProto, ...]]]:
        """Go on above a reduction, where its operand is never a buffer of its own."""
        operand = next(iter(self.program.operands(at)), None)
        count = elements(operand.shape) if operand is not None else 0
        if operand is None or not outer or count <= self.count or operand.opcode == "parameter":
            self._leaf(at)
            return []
        above = _Walk(self.flow, count, operand.shape.element_type)
        above.run(operand, outer)
        self.leaves.update(above.leaves)
        self.chain |= above.chain
        self.names.update(above.names)
        return []

    def _same(self, instruction: HloInstructionProto) -> bool:
        """Whether an instruction has the buffer's number of elements."""
        shape = instruction.shape
        if shape.element_type == TUPLE:
            return any(math.prod(part.dimensions) == self.count for part in shape.tuple_shapes)
        return math.prod(shape.dimensions) == self.count

    def _leaf(self, at: HloInstructionProto) -> None:
        """Enter a leaf."""
        self.leaves[at.id] = at
        bits = FLOAT_BITS.get(at.shape.element_type, 0)
        if at.opcode == "parameter" and 0 < bits < self.bits:
            self.narrow = at.shape.element_type

    def origin(self) -> Origin:
        """What was found."""
        return Origin(
            tuple(self.leaves.values()), frozenset(self.chain), tuple(self.names), self.narrow
        )
