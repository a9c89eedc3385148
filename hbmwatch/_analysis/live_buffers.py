"""The buffers live at a program's peak: inferred op_names, the loops that fill them, their readers.

Every walk starts at a live buffer, so that the cost grows with the peak and not with the program.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hbmwatch._analysis.graph import MOVES, Graph, elements
from hbmwatch._analysis.loops import LoopBuffer, LoopBuffers
from hbmwatch._analysis.origin import Origin, origin
from hbmwatch._analysis.places import stack_of
from hbmwatch._analysis.sources import source_of
from hbmwatch._analysis.updates import updated
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.program import Program
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.shapes import element_count

# Whether a program is differentiated shows in any part of it, so that a sample is enough.
SAMPLED_INSTRUCTIONS = 1000
# Two equal buffers may belong to one layer (its two norms); three are one per layer.
LEAST_LAYERS = 3
# What an op_name ends in where a program calls the host.
CALLBACKS = ("callback", "debug_print")
# It bounds the time of a report, in which every live buffer may start a walk.
MOST_VISITS = 300
_NUMBER = re.compile(r"\d+")
_CHECKPOINT = re.compile(r"(^|/)(checkpoint|rematted_computation)(/|$)")

Family = tuple[str, str, str]


class LiveBuffer(NamedTuple):
    """A buffer at the peak, and what the program says about it.

    Attributes:
        op: The buffer.
        instruction: The instruction that defines it.
        element_type: XLA's number of the element type.
        dims: The dimensions on one device.
        name: Its op_name, or the one that was inferred.
        source: The line that made it ("train.py:88"), its own or inferred.
        inferred: Whether name and source are inferred.
        loop_buffer: The loop that fills it; None where no loop does.
    """

    op: PeakOp
    instruction: HloInstructionProto
    element_type: int
    dims: tuple[int, ...]
    name: str
    source: str
    inferred: bool
    loop_buffer: LoopBuffer | None

    @property
    def size_bytes(self) -> int:
        """Bytes on the device."""
        return self.op.size_bytes

    @property
    def family(self) -> Family:
        """The same for buffers of the same code; layers differ only in their numbers."""
        return self.op.shape, _unnumbered(self.name), self.source

    @property
    def forward(self) -> bool:
        """Whether it was made by the forward pass of a differentiated function."""
        return is_forward(self.context)

    @property
    def context(self) -> str:
        """The op_name that shows which pass made it; for a loop buffer, the op_name of the loop.

        The value that a loop writes may come from a gradient inside of its body.
        """
        return self.name if self.loop_buffer is None else self.loop_buffer.context or self.name


@functools.lru_cache(maxsize=1 << 14)
def _unnumbered(op_name: str) -> str:
    """An op_name without the numbers of named blocks: Block_*/Dense_*/dot_general."""
    return _NUMBER.sub("*", op_name)


def is_forward(op_name: str) -> bool:
    """Whether an op_name is of a forward pass under reverse mode, or its recomputation."""
    return "jvp(" in op_name and ("transpose(" not in op_name or is_recomputed(op_name))


def is_backward(op_name: str) -> bool:
    """Whether an op_name is of a backward pass."""
    return "transpose(" in op_name and not is_recomputed(op_name)


def is_recomputed(op_name: str) -> bool:
    """Whether an op_name is of a value that jax.checkpoint recomputes."""
    return "rematted_computation" in op_name


def is_one_per_layer(count: int) -> bool:
    """Whether this number of equal buffers of a differentiated program means one per layer."""
    return count >= LEAST_LAYERS


class PeakBuffers:
    """The dataflow around a program's memory peak; everything is computed on demand."""

    def __init__(self, program: Program, summary: PeakSummary, graph: Graph | None = None) -> None:
        self.program = program
        self.summary = summary
        self.graph = graph or Graph(program)
        self.loop_buffers = LoopBuffers(self.graph)

    @functools.cached_property
    def live(self) -> tuple[LiveBuffer, ...]:
        """The buffers at the peak whose instruction is known, in program order."""
        return tuple(self._lives())

    @functools.cached_property
    def families(self) -> Counter[Family]:
        """The number of buffers at the peak in each family."""
        return Counter(live.family for live in self.live)

    @functools.cached_property
    def saved(self) -> tuple[LiveBuffer, ...]:
        """The buffers at the peak that the forward pass made and the backward pass reads."""
        if not self.differentiated:
            return ()
        known: dict[Family, bool] = {}
        for live in self.live:
            if live.family not in known and self._is_temporary(live):
                known[live.family] = self._is_saved(live)
        return tuple(live for live in self.live if known.get(live.family))

    def _is_temporary(self, live: LiveBuffer) -> bool:
        """Whether a buffer is temporary; a loop may fill one in the memory of a later output."""
        if live.op.kind != "output" or live.loop_buffer is None:
            return live.op.kind == "temporary"
        return not self.is_result(live)

    def is_result(self, live: LiveBuffer) -> bool:
        """Whether a buffer is a result: temporaries may be in the memory of a later output."""
        return live.op.kind == "output" and (live.dims, live.element_type) in self._results

    @functools.cached_property
    def _results(self) -> frozenset[tuple[tuple[int, ...], int]]:
        """The dimensions and element types of the results."""
        return frozenset((result.dims, result.element_type) for result in self.graph.results)

    def _is_saved(self, live: LiveBuffer) -> bool:
        """Whether the forward pass made a temporary and the backward pass reads it."""
        if live.forward and not is_recomputed(live.context):
            if live.loop_buffer is not None:
                return not self._is_result(live.loop_buffer)
            return any(is_backward(reader.metadata.op_name) for reader in self.uses(live))
        if not self.unmarked or live.loop_buffer is not None or live.name.endswith("/add_any"):
            return False
        weights = {parameter.dims for parameter in self.graph.parameters}
        return is_one_per_layer(self.families[live.family]) and live.dims not in weights

    def _is_result(self, filled: LoopBuffer) -> bool:
        """Whether a loop's buffer is read beside the loop: residuals are read in loops alone."""
        around, _ = self.graph.loop_of(filled.loop)
        for reader in self.loop_buffers.readers(filled):
            loop, body = self.graph.loop_of(reader)
            if loop is around and (body is not None or reader.id in self.order):
                return True
        return False

    def _owners(self) -> dict[str, HloInstructionProto]:
        """The instructions of the rows, by name."""
        rows = (op.instruction for op in self.summary.ops if op.instruction)
        return self.program.definers({row.partition("{")[0] for row in rows})

    def _lives(self) -> Iterator[LiveBuffer]:
        """The live buffers, without the row of small ones."""
        owners = self._owners()
        arrays: dict[str, tuple[int, tuple[int, ...]]] = {}
        for op in self.summary.ops:
            name, _, rest = op.instruction.partition("{")
            instruction = owners.get(name)
            if instruction is None:
                continue
            index = [int(i) for i in rest.rstrip("}").split(",") if i] if rest else []
            if op.shape not in arrays:
                shape = instruction.shape
                for i in index:
                    shape = shape.tuple_shapes[i] if 0 <= i < len(shape.tuple_shapes) else shape
                arrays[op.shape] = shape.element_type, tuple(shape.dimensions)
            is_parameter = op.kind == "parameter"
            filled = None if is_parameter else self.loop_buffers.of(instruction, index)
            name, source, inferred = op.op_name, op.source, False
            if filled is not None or not (op.op_name or is_parameter):
                name, source, inferred = self._name(op, instruction, filled)
            elif (made := self._of_fusion(instruction, index)) is not None:
                name, source = made.metadata.op_name, self.line_of(made) or op.source
            elif op.source:
                readers = (instruction, *self.graph.users(instruction))
                source = next(filter(None, map(self.line_of, readers)), "")
            element_type, dims = arrays[op.shape]
            yield LiveBuffer(op, instruction, element_type, dims, name, source, inferred, filled)

    # --- the program as a whole -------------------------------------------------------------------

    @functools.cached_property
    def op_names(self) -> frozenset[str]:
        """The op_names at the peak, and those of a sample of the program (all of a small one)."""
        running = [self.program.inside(computation) for computation in self.graph.running]
        step = max(1, sum(map(len, running)) // SAMPLED_INSTRUCTIONS)
        named = {i.metadata.op_name for instructions in running for i in instructions[::step]}
        return frozenset(named | {op.op_name for op in self.summary.ops})

    @functools.cached_property
    def differentiated(self) -> bool:
        """Whether the program has a backward pass."""
        return self.unmarked or any("transpose(" in name for name in self.op_names)

    @functools.cached_property
    def unmarked(self) -> bool:
        """Whether op_names do not show the passes: before jax 0.7 they do inside of jit only."""
        sums = (name for name in self.op_names if name.endswith("/add_any"))
        return any("transpose(" not in name for name in sums)

    @functools.cached_property
    def calls_back(self) -> bool:
        """Whether the program calls the host, as far as a sample of it shows."""
        return any(word in name for name in self.op_names for word in CALLBACKS)

    @functools.cached_property
    def checkpointed(self) -> bool:
        """Whether a part of the program is under jax.checkpoint."""
        return any(_CHECKPOINT.search(name) for name in self.op_names)

    @functools.cached_property
    def updated(self) -> frozenset[int]:
        """The numbers of the arguments that the program returns updated."""
        return updated(self.graph)

    @functools.cached_property
    def order(self) -> dict[int, int]:
        """The position of the entry computation's instructions in its schedule, by id."""
        scheduled = self.program.scheduled
        return {instruction.id: position for position, instruction in enumerate(scheduled)}

    # --- names ------------------------------------------------------------------------------------

    def _name(
        self, op: PeakOp, instruction: HloInstructionProto, filled: LoopBuffer | None
    ) -> tuple[str, str, bool]:
        """op_name and source of a buffer, and whether they are inferred.

        A loop buffer takes them from the value that the loop writes, even where it has its own: XLA
        names the empty buffer after the zeros that it starts from.
        """
        if filled is not None and filled.from_argument:
            # What the user's code updates in place is that array, not what it writes there.
            update = self.graph.root(filled.update)
            if update.metadata.op_name:
                source = self._line_in(filled.loop, update)
                return update.metadata.op_name, source, update.metadata.op_name != op.op_name
        found = (
            self.loop_buffers.written(filled) if filled is not None else self._named(instruction)
        )
        if found is None or not found.metadata.op_name:
            return op.op_name, op.source, False
        # What an inner loop computes has its line; the stack is made by the outer one.
        nested = filled is not None and found.opcode == "while"
        source = self.line_of(filled.loop if filled is not None and nested else found)
        if filled is None:
            source = op.source or source
        return found.metadata.op_name, source, True

    def _line_in(self, loop: HloInstructionProto, instruction: HloInstructionProto) -> str:
        """The user's line of what a loop does, where its stack shows that it is of that loop."""
        around, stack = self.program.stack(loop), self.program.stack(instruction)
        if around and stack[-len(around) :] == around:
            return user_frame([frame.line for frame in stack])
        return self.line_of(instruction)

    def _of_fusion(
        self, instruction: HloInstructionProto, index: list[int]
    ) -> HloInstructionProto | None:
        """What computes one of several results of a fusion, if it has a name; None otherwise."""
        if not index or self.graph.fused(instruction) is None:
            return None
        result = self.graph.element(instruction, index[0])
        made = self.graph.root(result) if result is not None else None
        return made if made is not None and made.metadata.op_name else None

    def line_of(self, instruction: HloInstructionProto) -> str:
        """The user's line that an instruction is from ("train.py:88"); "" where unknown."""
        return user_frame([frame.line for frame in stack_of(self.graph, instruction)])

    def _named(self, instruction: HloInstructionProto) -> HloInstructionProto | None:
        """The nearest instruction with an op_name: inside, above, then among the users."""
        seen: set[int] = set()
        todo = [instruction]
        while todo and len(seen) < MOST_VISITS:
            current = todo.pop(0)
            if current.id in seen:
                continue
            seen.add(current.id)
            if current.metadata.op_name and current.opcode != "parameter":
                return current
            inner = self.graph.fused(current)
            within = self.program.inside(inner) if inner is not None else ()
            named = [i for i in within if i.metadata.op_name]
            if named:
                return named[-1]
            todo += self.graph.operands(current)
        users = self.graph.users(instruction)
        return next((user for user in users if user.metadata.op_name), None)

    # --- origins and uses -------------------------------------------------------------------------

    def origin(self, live: LiveBuffer) -> Origin:
        """The instructions that introduced the number of elements of a buffer."""
        start = live.instruction if live.loop_buffer is None else live.loop_buffer.update
        return origin(self.graph, start, element_count(live.dims), live.element_type)

    def uses(self, live: LiveBuffer) -> tuple[HloInstructionProto, ...]:
        """The instructions that read a buffer, also behind copies and inside of fusions."""
        seen: set[int] = set()
        todo = [live.instruction]
        found: list[HloInstructionProto] = []
        while todo and len(seen) < MOST_VISITS:
            for user in self.graph.users(todo.pop()):
                if user.id in seen:
                    continue
                seen.add(user.id)
                found.append(user)
                found += self.graph.everything_in(user)
                if user.opcode in MOVES:
                    todo.append(user)
        return tuple(found)

    def readers(self, live: LiveBuffer) -> list[HloInstructionProto]:
        """The instructions that read a buffer's bytes, rewritten in place or not."""
        seen: dict[int, HloInstructionProto] = {}
        todo = [live.instruction]
        count = element_count(live.dims)
        while todo and len(seen) < MOST_VISITS:
            for user in self.graph.users(todo.pop()):
                if user.id not in seen:
                    seen[user.id] = user
                    todo += [user] if elements(user.shape) == count else []
        return list(seen.values())

    def argument_of(self, instruction: HloInstructionProto) -> str:
        """The path of the argument that an instruction copies, slices or converts; "" if none."""
        source = source_of(self.graph, instruction)
        return source.metadata.op_name if self.graph.is_argument(source) else ""
