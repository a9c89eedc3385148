"""One compiled program: its instructions, computations, allocations, aliases and source lines."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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

# XLA's instruction ids begin with their computation's since 2025, above so many bits.
_ID_BITS = 32
_LARGEST_BYTES = 2**60


class Buffer(NamedTuple):
    """A logical buffer, the allocation that it lies in, and the instruction that defines it."""

    proto: LogicalBufferProto
    allocation: BufferAllocationProto
    instruction: HloInstructionProto


@dataclass(frozen=True, eq=False)
class Program:
    """One compiled HLO module, with its buffer assignment; everything derived is made on demand.

    The parts are XLA's protos (see _protos): instructions, computations, allocations, logical
    buffers. Ids that point nowhere are left out of what refers to them.

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

    @property
    def allocations(self) -> Sequence[BufferAllocationProto]:
        """The compiler's allocations, by index."""
        return self.proto.buffer_assignment.buffer_allocations

    @functools.cached_property
    def listed(self) -> tuple[HloComputationProto, ...]:
        """The computations, in order; a tuple, as protobuf is slow to go through again."""
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
        """An instruction by id; None where there is none.

        Only the computations that are asked for are gone through, as the entry computation holds a
        fifth of a program's instructions and nearly all that matter at a peak.
        """
        known = self._known
        if instruction_id not in known:
            number = instruction_id >> _ID_BITS
            computation = self._unread.pop(number, None)
            for instruction in computation.instructions if computation is not None else ():
                if instruction.id >> _ID_BITS == number:
                    known[instruction.id] = instruction
            if instruction_id not in known:  # it is an older XLA's, or a damaged program's
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
        """The entry computation; None where the module names none."""
        module = self.proto.hlo_module
        found = self.computations.get(module.entry_computation_id)
        named = (c for c in self.listed if c.name == module.entry_computation_name)
        return found if found is not None else next(named, None)

    @functools.cached_property
    def scheduled(self) -> Sequence[HloInstructionProto]:
        """The entry computation's instructions, in the order of its schedule."""
        return self.inside(self.entry) if self.entry is not None else ()

    def inside(self, computation: HloComputationProto) -> Sequence[HloInstructionProto]:
        """The instructions of a computation, in the order of its schedule.

        They are kept: protobuf makes its objects anew each time that nobody holds them.
        """
        if computation.id not in self._inside:
            self._inside[computation.id] = tuple(computation.instructions)
        return self._inside[computation.id]

    @functools.cached_property
    def _inside(self) -> dict[int, tuple[HloInstructionProto, ...]]:
        """What inside has made so far, by the computation's id."""
        return {}

    def buffer(self, buffer_id: int) -> Buffer | None:
        """A logical buffer by id; None where it has no place in an allocation.

        Buffers are made on demand, as a peak needs a tenth of a program's.

        Raises:
            ProfileError: A size is negative, or no memory could hold it.
        """
        if buffer_id not in self._buffers:
            self._buffers[buffer_id] = self._buffer(buffer_id)
        return self._buffers[buffer_id]

    def _buffer(self, buffer_id: int) -> Buffer | None:
        """A logical buffer by id, made anew."""
        allocation, proto = self._places.get(buffer_id), self._logical.get(buffer_id)
        if allocation is None or proto is None:
            return None
        instruction = self.instruction(proto.defined_at.instruction_id)
        if instruction is None:
            return None
        self._check(proto.size)
        return Buffer(proto, allocation, instruction)

    def buffers(self) -> Iterator[Buffer]:
        """All logical buffers that have a place in an allocation."""
        found = map(self.buffer, self._places)
        return (buffer for buffer in found if buffer is not None)

    @functools.cached_property
    def _buffers(self) -> dict[int, Buffer | None]:
        """The buffers that were asked for so far, by id."""
        return {}

    @functools.cached_property
    def _logical(self) -> dict[int, LogicalBufferProto]:
        """The logical buffers by id, with a place or without."""
        return {buffer.id: buffer for buffer in self.proto.buffer_assignment.logical_buffers}

    @functools.cached_property
    def _places(self) -> dict[int, BufferAllocationProto]:
        """The allocation that a logical buffer lies in, by the buffer's id."""
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
        """Which output may lie in the memory of which parameter."""
        return self.proto.hlo_module.input_output_alias.entries

    @property
    def donors(self) -> Sequence[BufferDonorEntryProto]:
        """The donated parameters for which no output was found."""
        return self.proto.hlo_module.buffer_donor.entries

    @property
    def parameter_shardings(self) -> Sequence[OpSharding]:
        """The shardings of the parameters over the mesh; empty where there is one device."""
        return self.proto.hlo_module.spmd_parameters_shardings

    @property
    def output_sharding(self) -> OpSharding | None:
        """The sharding of the output; None where there is one device."""
        module = self.proto.hlo_module
        return module.spmd_output_sharding if module.HasField("spmd_output_sharding") else None

    def frames(self, instruction: HloInstructionProto) -> tuple[str, ...]:
        """The stack of the line that made it, as "/path/file.py:line", innermost first."""
        metadata = instruction.metadata
        if metadata.stack_frame_id:
            return self._frames(metadata.stack_frame_id)
        if metadata.source_file:
            return (f"{metadata.source_file}:{metadata.source_line}",)
        return ()

    @functools.cached_property
    def _known_frames(self) -> dict[int, tuple[str, ...]]:
        """What _frames has found so far, by frame id."""
        return {}

    def _frames(self, frame_id: int) -> tuple[str, ...]:
        """The stack from a frame on; ends where it points nowhere or comes round again."""
        if frame_id in self._known_frames:
            return self._known_frames[frame_id]
        index = self.proto.hlo_module.stack_frame_index
        lines: dict[int, str] = {}
        at = frame_id
        while at not in lines and 0 < at <= len(index.stack_frames):
            frame = index.stack_frames[at - 1]
            lines[at] = ""
            if 0 < frame.file_location_id <= len(index.file_locations):
                location = index.file_locations[frame.file_location_id - 1]
                if 0 < location.file_name_id <= len(index.file_names):
                    lines[at] = f"{index.file_names[location.file_name_id - 1]}:{location.line}"
            at = frame.parent_frame_id
        self._known_frames[frame_id] = tuple(line for line in lines.values() if line)
        return self._known_frames[frame_id]


def parse_program(hlo_proto: bytes, name: str) -> Program:
    """The program in a serialized HloProto.

    Args:
        hlo_proto: A serialized HloProto, from a profile or from xla_dump_to.
        name: As the profile names it ("jit_step(12)"); a name without a number takes the
            HloModuleProto's id.

    Raises:
        ProfileError: The bytes are no HloProto, or hold no module.
    """
    proto = parse(HloProto, hlo_proto, f"the HloProto of {name}")
    if not proto.HasField("hlo_module"):
        raise ProfileError(f"the HloProto of {name} holds no module ({len(hlo_proto)} bytes)")
    match = MODULE_NAME.fullmatch(name)
    program_id = int(match["id"]) if match else proto.hlo_module.id
    module = proto.hlo_module.name or (match["module"] if match else name)
    return Program(proto=proto, name=name, module=module, program_id=program_id % 2**64)
