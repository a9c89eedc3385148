"""One compiled program: its instructions, computations, allocations, aliases and source lines."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hbmwatch._records.cells import shown_file
from hbmwatch._records.libraries import is_own
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.protos import (
    AliasEntryProto,
    BufferAllocationProto,
    BufferDonorEntryProto,
    HloComputationProto,
    HloInstructionProto,
    HloProto,
    LogicalBufferProto,
    OpSharding,
    parse,
)
from hbmwatch._xla.terms import MODULE_NAME

# Since 2025 an instruction's id is its computation's id, followed by this many bits of its own.
_ID_BITS = 32
_LARGEST_BYTES = 2**60


def _memo() -> Any:
    """A field for what was made so far, by id; no argument of the constructor."""
    return field(default_factory=dict, init=False, repr=False)


class Buffer(NamedTuple):
    """A logical buffer, the allocation that it is in, and the instruction that defines it."""

    proto: LogicalBufferProto
    allocation: BufferAllocationProto
    instruction: HloInstructionProto


class Frame(NamedTuple):
    """A frame of a Python stack: a line ("/path/file.py:12"), and its function; "" if unknown."""

    line: str
    function: str


@dataclass(frozen=True, eq=False)
class Program:
    """One compiled HLO module, with its buffer assignment; what follows from it is made on demand.

    The parts are XLA's protos (see _xla.protos): instructions, computations, allocations, logical
    buffers. A reference to an id that does not exist is left out. A Program does not change; what
    it has made so far is kept in private dicts, as protobuf makes a new object at each access.

    Attributes:
        proto: The HloProto.
        name: As the profile names it ("jit_step(12)").
        module: The HLO module ("jit_step").
        program_id: The number in the profile's name, else HloModuleProto.id; as unsigned 64 bits.
    """

    proto: HloProto = field(repr=False)
    name: str
    module: str
    program_id: int
    _computation_instructions: dict[int, tuple[HloInstructionProto, ...]] = _memo()
    _made_buffers: dict[int, Buffer | None] = _memo()
    _made_frames: dict[int, tuple[Frame, ...]] = _memo()

    @property
    def allocations(self) -> Sequence[BufferAllocationProto]:
        """The compiler's allocations, by index."""
        return self.proto.buffer_assignment.buffer_allocations

    @property
    def device_count(self) -> int:
        """The number of devices that the program was compiled for; 1 where that is not stored."""
        assigned = self.proto.hlo_module.device_assignment
        return max(1, assigned.replica_count * assigned.computation_count)

    @functools.cached_property
    def is_tiled(self) -> bool:
        """Whether an array has a tiled layout, as all arrays have on a TPU and none on a CPU."""
        return any(instruction.shape.layout.tiles for instruction in self.scheduled)

    @property
    def is_of_gpu(self) -> bool:
        """Whether XLA's compiler for GPUs scheduled it, which leaves a mark."""
        attributes = self.proto.hlo_module.frontend_attributes.map
        return any(attribute.key == "fingerprint_before_lhs" for attribute in attributes)

    @functools.cached_property
    def listed(self) -> tuple[HloComputationProto, ...]:
        """The computations, in order; a tuple, as protobuf is slow to read twice."""
        return tuple(self.proto.hlo_module.computations)

    @functools.cached_property
    def computations(self) -> dict[int, HloComputationProto]:
        """The computations, by id."""
        return {computation.id: computation for computation in self.listed}

    @functools.cached_property
    def instructions(self) -> dict[int, HloInstructionProto]:
        """The instructions of all computations, by id; `instruction` reads few of them."""
        return {
            instruction.id: instruction
            for computation in self.listed
            for instruction in computation.instructions
        }

    def instruction(self, instruction_id: int) -> HloInstructionProto | None:
        """An instruction by id; None if no instruction has it.

        Only the computations that are needed are read: the entry computation holds a fifth of a
        program's instructions, and nearly all that matter at a peak.
        """
        known = self._known
        if instruction_id not in known:
            number = instruction_id >> _ID_BITS
            computation = self._unread.pop(number, None)
            for instruction in computation.instructions if computation is not None else ():
                if instruction.id >> _ID_BITS == number:
                    known[instruction.id] = instruction
            if instruction_id not in known:  # of an older XLA, or of a damaged program
                known[instruction_id] = self.instructions.get(instruction_id)
        return known[instruction_id]

    @functools.cached_property
    def _known(self) -> dict[int, HloInstructionProto | None]:
        """What `instruction` has read, by id: at first the entry computation's instructions."""
        return {instruction.id: instruction for instruction in self.scheduled}

    @functools.cached_property
    def _unread(self) -> dict[int, HloComputationProto]:
        """The computations that `instruction` has not read, by id."""
        return {c.id: c for c in self.listed if c is not self.entry}

    @functools.cached_property
    def entry(self) -> HloComputationProto | None:
        """The entry computation; None if the module names none."""
        module = self.proto.hlo_module
        found = self.computations.get(module.entry_computation_id)
        named = (c for c in self.listed if c.name == module.entry_computation_name)
        return found if found is not None else next(named, None)

    @functools.cached_property
    def scheduled(self) -> Sequence[HloInstructionProto]:
        """The entry computation's instructions, in the order of its schedule."""
        return self.inside(self.entry) if self.entry is not None else ()

    def inside(self, computation: HloComputationProto) -> Sequence[HloInstructionProto]:
        """The instructions of a computation, in the order of its schedule."""
        made = self._computation_instructions
        if computation.id not in made:
            made[computation.id] = tuple(computation.instructions)
        return made[computation.id]

    def buffer(self, buffer_id: int) -> Buffer | None:
        """A logical buffer by id; None if it is in no allocation.

        Buffers are made on demand, as a peak needs a tenth of a program's.

        Raises:
            ProfileError: A size is negative, or no memory could hold it.
        """
        made = self._made_buffers
        if buffer_id not in made:
            made[buffer_id] = self._make_buffer(buffer_id)
        return made[buffer_id]

    def _make_buffer(self, buffer_id: int) -> Buffer | None:
        """A logical buffer by id."""
        allocation, proto = self._places.get(buffer_id), self._logical.get(buffer_id)
        if allocation is None or proto is None:
            return None
        instruction = self.instruction(proto.defined_at.instruction_id)
        if instruction is None:
            return None
        self._check(proto.size)
        return Buffer(proto, allocation, instruction)

    def buffers(self) -> Iterator[Buffer]:
        """All logical buffers that are in an allocation."""
        found = map(self.buffer, self._places)
        return (buffer for buffer in found if buffer is not None)

    def definers(self, names: Set[str]) -> dict[str, HloInstructionProto]:
        """The instructions of these names that define a buffer, by name.

        Those of a peak are among the buffers that it read, so the others are searched last.
        """
        read = [buffer for buffer in self._made_buffers.values() if buffer is not None]
        found: dict[str, HloInstructionProto] = {}
        for buffers in (read, self.buffers()):
            if len(found) < len(names):
                instructions = (buffer.instruction for buffer in buffers)
                found |= {name: i for i in instructions if (name := i.name) in names}
        return found

    @functools.cached_property
    def _logical(self) -> dict[int, LogicalBufferProto]:
        """The logical buffers by id, in an allocation or not."""
        return {buffer.id: buffer for buffer in self.proto.buffer_assignment.logical_buffers}

    @functools.cached_property
    def _places(self) -> dict[int, BufferAllocationProto]:
        """The allocation that a logical buffer is in, by the buffer's id."""
        places = {}
        for allocation in self.allocations:
            self._check(allocation.size)
            for assigned in allocation.assigned:
                places[assigned.logical_buffer_id] = allocation
        return places

    def _check(self, size_bytes: int) -> None:
        """Raise ProfileError unless a size is one that memory can have."""
        if not 0 <= size_bytes <= _LARGEST_BYTES:
            raise ProfileError(f"{self.name} is damaged: it has a buffer of {size_bytes} bytes")

    @property
    def aliases(self) -> Sequence[AliasEntryProto]:
        """Which output may reuse the memory of which parameter."""
        return self.proto.hlo_module.input_output_alias.entries

    @property
    def donors(self) -> Sequence[BufferDonorEntryProto]:
        """The donated parameters that no output reuses."""
        return self.proto.hlo_module.buffer_donor.entries

    @property
    def parameter_shardings(self) -> Sequence[OpSharding]:
        """The shardings of the parameters over the mesh; empty on one device."""
        return self.proto.hlo_module.spmd_parameters_shardings

    @property
    def output_sharding(self) -> OpSharding | None:
        """The sharding of the output; None on one device."""
        module = self.proto.hlo_module
        return module.spmd_output_sharding if module.HasField("spmd_output_sharding") else None

    @functools.cached_property
    def step_names(self) -> Set[str]:
        """The names of the jitted function on the stacks; none where no stack has it.

        It may be in a class or in another function: "main.<locals>.step".
        """
        step = self.module.removeprefix("jit_")
        names = self.proto.hlo_module.stack_frame_index.function_names
        return frozenset(name for name in names if name.rpartition(".")[2] == step)

    def frames(self, instruction: HloInstructionProto) -> tuple[str, ...]:
        """The Python stack of an instruction, as "/path/file.py:line", innermost first."""
        return tuple(frame.line for frame in self.stack(instruction))

    def stack(self, instruction: HloInstructionProto) -> tuple[Frame, ...]:
        """The Python stack of an instruction without frames of hbmwatch, innermost first."""
        metadata = instruction.metadata
        if metadata.stack_frame_id:
            return self._frames(metadata.stack_frame_id)
        if metadata.source_file:
            return (Frame(f"{shown_file(metadata.source_file)}:{metadata.source_line}", ""),)
        return ()

    def _frames(self, frame_id: int) -> tuple[Frame, ...]:
        """The stack from a frame outwards; ends at an unknown frame, or at one that is in it."""
        if frame_id in self._made_frames:
            return self._made_frames[frame_id]
        index = self.proto.hlo_module.stack_frame_index
        frames: dict[int, Frame | None] = {}
        number = frame_id
        while number not in frames and 0 < number <= len(index.stack_frames):
            frame = index.stack_frames[number - 1]
            frames[number] = self._frame(frame.file_location_id)
            number = frame.parent_frame_id
        stack = (f for f in frames.values() if f is not None and not is_own(f.line))
        self._made_frames[frame_id] = tuple(stack)
        return self._made_frames[frame_id]

    def _frame(self, location_id: int) -> Frame | None:
        """The frame of a location; None where its file is unknown."""
        index = self.proto.hlo_module.stack_frame_index
        if not 0 < location_id <= len(index.file_locations):
            return None
        location = index.file_locations[location_id - 1]
        if not 0 < location.file_name_id <= len(index.file_names):
            return None
        known = 0 < location.function_name_id <= len(index.function_names)
        function = index.function_names[location.function_name_id - 1] if known else ""
        file = shown_file(index.file_names[location.file_name_id - 1])
        return Frame(f"{file}:{location.line}", function)


def parse_program(hlo_proto: bytes, name: str) -> Program:
    """The program in a serialized HloProto.

    Args:
        hlo_proto: A serialized HloProto, from a profile or from xla_dump_to.
        name: As the profile names it ("jit_step(12)"); a name without a number takes the
            HloModuleProto's id.

    Raises:
        ProfileError: The bytes are not an HloProto, or hold no module.
    """
    proto = parse(HloProto, hlo_proto, f"the HloProto of {name}")
    if not proto.HasField("hlo_module"):
        raise ProfileError(f"the HloProto of {name} holds no module ({len(hlo_proto)} bytes)")
    match = MODULE_NAME.fullmatch(name)
    program_id = int(match["id"]) if match else proto.hlo_module.id
    module = proto.hlo_module.name or (match["module"] if match else name)
    return Program(proto=proto, name=name, module=module, program_id=program_id % 2**64)
