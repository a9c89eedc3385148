"""One compiled program: its instructions, computations, allocations, aliases and source lines."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hbmwatch import _shapes
from hbmwatch._protos import (
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
from hbmwatch._records import ProfileError
from hbmwatch._terms import MODULE_NAME, SMALL_BYTES


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
        """The computations, in order; kept, as protobuf makes its objects anew where they are not.
        """
        return tuple(self.proto.hlo_module.computations)

    @functools.cached_property
    def computations(self) -> dict[int, HloComputationProto]:
        """The computations, by id."""
        return {computation.id: computation for computation in self.listed}

    @functools.cached_property
    def instructions(self) -> dict[int, HloInstructionProto]:
        """The instructions of all computations, by id."""
        return self.outside | self._instructions(fused=True)

    @functools.cached_property
    def outside(self) -> dict[int, HloInstructionProto]:
        """The instructions outside of fusions, by id: a third of a program, and all its buffers."""
        return self._instructions(fused=False)

    def _instructions(self, *, fused: bool) -> dict[int, HloInstructionProto]:
        """The instructions inside of fusions, or outside, by id."""
        return {
            instruction.id: instruction
            for computation in self.listed
            if computation.is_fusion_computation is fused
            for instruction in computation.instructions
        }

    @functools.cached_property
    def computation_of(self) -> dict[int, HloComputationProto]:
        """The computation that an instruction is in, by the instruction's id."""
        return {
            instruction.id: computation
            for computation in self.listed
            for instruction in computation.instructions
        }

    @functools.cached_property
    def users(self) -> dict[int, tuple[HloInstructionProto, ...]]:
        """The instructions that use an instruction's result, by the latter's id."""
        users: dict[int, list[HloInstructionProto]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operand_ids):
                users.setdefault(operand, []).append(instruction)
        return {operand: tuple(found) for operand, found in users.items()}

    @functools.cached_property
    def callers(self) -> dict[int, tuple[HloInstructionProto, ...]]:
        """The instructions (fusion, while, call, ...) that call a computation, by its id."""
        callers: dict[int, list[HloInstructionProto]] = {}
        for instruction in self.instructions.values():
            ids = instruction.called_computation_ids
            for called in dict.fromkeys(ids) if ids else ():
                callers.setdefault(called, []).append(instruction)
        return {called: tuple(found) for called, found in callers.items()}

    def operands(self, instruction: HloInstructionProto) -> tuple[HloInstructionProto, ...]:
        """The instructions whose results it takes."""
        found = (self.instructions.get(operand) for operand in instruction.operand_ids)
        return tuple(operand for operand in found if operand is not None)

    @functools.cached_property
    def entry(self) -> HloComputationProto | None:
        """The entry computation; None where the module names none."""
        module = self.proto.hlo_module
        found = self.computations.get(module.entry_computation_id)
        named = (c for c in self.listed if c.name == module.entry_computation_name)
        return found if found is not None else next(named, None)

    @functools.cached_property
    def parameters(self) -> dict[int, HloInstructionProto]:
        """The entry computation's parameters, by number."""
        instructions = self.entry.instructions if self.entry is not None else ()
        return {i.parameter_number: i for i in instructions if i.opcode == "parameter"}

    @functools.cached_property
    def buffers(self) -> dict[int, Buffer]:
        """The logical buffers that have a place in an allocation, by id.

        Raises:
            ProfileError: A size is negative, or no memory could hold it.
        """
        logical = {buffer.id: buffer for buffer in self.proto.buffer_assignment.logical_buffers}
        placed = {}
        for allocation in self.allocations:
            self._check(allocation.size)
            for assigned in allocation.assigned:
                buffer = logical.get(assigned.logical_buffer_id)
                if buffer is None:
                    continue
                defined_at = buffer.defined_at.instruction_id
                instruction = self.outside.get(defined_at) or self.instructions.get(defined_at)
                if instruction is not None:
                    self._check(buffer.size)
                    placed[buffer.id] = Buffer(buffer, allocation, instruction)
        return placed

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

    @functools.cached_property
    def caveats(self) -> tuple[str, ...]:
        """Sentences on what this reader does not know in the program; empty for most.

        Of the buffers that have a row of their own in a summary.
        """
        shapes = (_shapes.subshape(b.instruction.shape, b.proto.defined_at.shape_index)
                  for b in self.buffers.values() if b.proto.size >= SMALL_BYTES)
        unknown = {shape.element_type for shape in shapes if not _shapes.is_known(shape)}
        return tuple(
            f"{self.name} has buffers of XLA's element type {kind}, which this version of hbmwatch "
            f"does not know: their sizes are right, their padding is not known"
            for kind in sorted(unknown)
        )


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
