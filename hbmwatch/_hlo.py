"""XLA's programs: from a profile to its modules, and from a module to its memory peak.

The peak follows XProf's Memory Viewer, to the byte
(xprof/convert/hlo_proto_to_memory_visualization_utils.cc); tests hold it against XProf itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hbmwatch import _shapes
from hbmwatch._protos import (
    AliasEntryProto,
    BufferAllocationProto,
    BufferDonorEntryProto,
    HeapEvent,
    HloComputationProto,
    HloInstructionProto,
    HloProto,
    LogicalBufferProto,
    OpSharding,
    XPlane,
    XSpace,
    message_class,
    parse,
)
from hbmwatch._records import Kind, PeakOp, PeakSummary, ProfileError
from hbmwatch._terms import MODULE_NAME, SMALL_BYTES, memory_color, source_of

_ALLOC, _FREE, _SHARE = 0, 1, 2


# --- a profile's modules --------------------------------------------------------------------------


def read_modules(xspace: bytes, what: str = "the profile") -> dict[str, bytes]:
    """Every HLO module of a profile, as "jit_step(12)" -> serialized HloProto, in the file's order.

    The HloProtos are not parsed. Two different modules of one name (a GPU's and the CPU's, in two
    planes) are both there, the second one as "jit_step(12) #2".

    Args:
        xspace: A serialized XSpace: the content of an .xplane.pb file.
        what: What the bytes are, for errors ("h.xplane.pb").

    Raises:
        ProfileError: The bytes are empty, or no XSpace.
    """
    if not xspace:
        raise ProfileError(f"{what} is empty (0 bytes)")
    space = parse(XSpace, xspace, what)
    if not space.planes:
        raise ProfileError(f"{what} is damaged: it holds no planes ({len(xspace)} bytes)")
    planes = [plane for plane in space.planes if plane.name == "/host:metadata"]
    return label_modules(module for plane in planes for module in _plane_modules(plane))


def label_modules(modules: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Modules by name; a different module of a name that is taken gets " #2", " #3", ..."""
    labelled: dict[str, bytes] = {}
    for name, proto in modules:
        label, copies = name, 1
        while label in labelled and labelled[label] != proto:
            copies += 1
            label = f"{name} #{copies}"
        labelled[label] = proto
    return labelled


def _plane_modules(plane: XPlane) -> Iterable[tuple[str, bytes]]:
    """The modules of one metadata plane, as (name, serialized HloProto)."""
    wanted = {entry.key for entry in plane.stat_metadata if entry.value.name == "Hlo Proto"}
    for entry in plane.event_metadata:
        for stat in entry.value.stats:
            if stat.metadata_id in wanted and stat.bytes_value:
                yield entry.value.name, stat.bytes_value


def make_xspace(name: str, program_id: int, hlo_proto: bytes, hostname: str) -> bytes:
    """A profile that holds this one module and nothing else, as XProf's Memory Viewer reads it.

    Args:
        name: The HLO module's name, without its id ("jit_step").
        program_id: The number in the profile's "jit_step(12)".
        hlo_proto: The serialized HloProto.
        hostname: The host that compiled it.
    """
    return pack_modules([(name, program_id, hlo_proto)], hostname)


def pack_modules(modules: Sequence[tuple[str, int, bytes]], hostname: str) -> bytes:
    """A profile of modules only, each as (name without id, program id, serialized HloProto)."""
    events = [
        {
            "id": key,
            "name": f"{name}({program_id % 2**64})",
            "stats": [
                {"metadata_id": 1, "bytes_value": hlo_proto},
                {"metadata_id": 2, "int64_value": _signed(program_id)},
            ],
        }
        for key, (name, program_id, hlo_proto) in enumerate(modules, start=1)
    ]
    names = {1: "Hlo Proto", 2: "program_id"}
    plane = {
        "name": "/host:metadata",
        "event_metadata": [{"key": event["id"], "value": event} for event in events],
        "stat_metadata": [{"key": k, "value": {"id": k, "name": v}} for k, v in names.items()],
    }
    space = message_class(XSpace)(planes=[plane], hostnames=[hostname])
    serialized: bytes = space.SerializeToString()
    return serialized


def _signed(number: int) -> int:
    """A 64-bit number in the range of int64."""
    return (number + 2**63) % 2**64 - 2**63


# --- a program ------------------------------------------------------------------------------------


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
    def computations(self) -> dict[int, HloComputationProto]:
        """The computations, by id."""
        return {computation.id: computation for computation in self.proto.hlo_module.computations}

    @functools.cached_property
    def instructions(self) -> dict[int, HloInstructionProto]:
        """The instructions of all computations, by id."""
        return {
            instruction.id: instruction
            for computation in self.proto.hlo_module.computations
            for instruction in computation.instructions
        }

    @functools.cached_property
    def computation_of(self) -> dict[int, HloComputationProto]:
        """The computation that an instruction is in, by the instruction's id."""
        return {
            instruction.id: computation
            for computation in self.proto.hlo_module.computations
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
            for called in dict.fromkeys(instruction.called_computation_ids):
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
        named = (c for c in module.computations if c.name == module.entry_computation_name)
        return found if found is not None else next(named, None)

    @functools.cached_property
    def parameters(self) -> dict[int, HloInstructionProto]:
        """The entry computation's parameters, by number."""
        instructions = self.entry.instructions if self.entry is not None else ()
        return {i.parameter_number: i for i in instructions if i.opcode == "parameter"}

    @functools.cached_property
    def buffers(self) -> dict[int, Buffer]:
        """The logical buffers that have a place in an allocation, by id."""
        logical = {buffer.id: buffer for buffer in self.proto.buffer_assignment.logical_buffers}
        instructions = self.instructions
        placed = {}
        for allocation in self.allocations:
            for assigned in allocation.assigned:
                buffer = logical.get(assigned.logical_buffer_id)
                if buffer is None:
                    continue
                instruction = instructions.get(buffer.defined_at.instruction_id)
                if instruction is not None:
                    placed[buffer.id] = Buffer(buffer, allocation, instruction)
        return placed

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
        """Sentences on what this reader does not know in the program; empty for most."""
        shapes = (_shapes.subshape(b.instruction.shape, b.proto.defined_at.shape_index)
                  for b in self.buffers.values())
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


# --- its memory peak ------------------------------------------------------------------------------


def peak_summary(program: Program, memory_space: str = "hbm") -> PeakSummary:
    """The memory peak of a program in one memory space, as XProf's Memory Viewer has it.

    Allocations that live through the whole program (parameters, outputs, constants) come first,
    then the buffers that the heap trace has live at the peak, in the order of their allocation.
    XProf lists the former in HBM only; here they are listed in every memory space, so that the
    sizes sum to the peak. XProf counts the row of small buffers as 0 bytes unpadded.

    Totals are over the allocations of the memory space: parameters are entry parameters, aliased
    ones are those that hold an output as well, outputs are what else may live out, temporaries
    are all but these and constants and thread-local scratch. They are memory_analysis()'s
    argument, alias and temp sizes; its output size counts the aliased ones once more.

    Raises:
        ProfileError: The program has no buffer assignment, or an inconsistent one.
        ValueError: No such memory space.
    """
    color = memory_color(memory_space)
    if not program.proto.HasField("buffer_assignment"):
        raise ProfileError(f"{program.name} has no buffer assignment, so its peak is not known")
    allocations = [a for a in program.allocations if a.color == color and not a.is_thread_local]
    lasting = [(a, b) for a in allocations if _lasts(a) if (b := _largest(program, a)) is not None]
    lasting_bytes = sum(a.size for a, _ in lasting)
    heap = _replay(program, _trace(program, color))
    points = np.array(heap.sizes, dtype=np.int64) + lasting_bytes
    points.flags.writeable = False
    shown = [b for _, b in lasting] + [program.buffers[shown] for _, shown in heap.live]
    peak_bytes = max(heap.sizes, default=0) + lasting_bytes
    total_bytes = sum(a.size for a in allocations)
    return PeakSummary(
        module=program.module,
        program_id=program.program_id,
        memory_space=memory_space,
        peak_bytes=peak_bytes,
        peak_unpadded_bytes=lasting_bytes
        + sum(_unpadded(program.buffers[canonical]) for canonical, _ in heap.live),
        peak_position=int(points.argmax()) if heap.sizes else None,
        heap_bytes=points,
        parameter_bytes=sum(a.size for a in allocations if a.is_entry_computation_parameter),
        output_bytes=sum(
            a.size
            for a in allocations
            if a.maybe_live_out and not a.is_entry_computation_parameter
        ),
        aliased_bytes=sum(
            a.size
            for a in allocations
            if a.maybe_live_out and a.is_entry_computation_parameter
        ),
        temporary_bytes=sum(a.size for a in allocations if not _lasts(a)),
        total_allocation_bytes=total_bytes,
        fragmentation_bytes=total_bytes - peak_bytes if heap.sizes else 0,
        ops=_rows(program, shown, heap.spans, memory_space),
    )


def _lasts(allocation: BufferAllocationProto) -> bool:
    """Whether it lives through the whole program: XProf's "indefinite"."""
    return (
        allocation.is_thread_local
        or allocation.is_entry_computation_parameter
        or allocation.is_constant
        or allocation.maybe_live_out
    )


def _largest(program: Program, allocation: BufferAllocationProto) -> Buffer | None:
    """The buffer that stands for an allocation: its largest, the first of equals; None if empty."""
    found = None
    for assigned in allocation.assigned:
        buffer = program.buffers.get(assigned.logical_buffer_id)
        if buffer is not None and buffer.proto.size > (found.proto.size if found else 0):
            found = buffer
    return found


def _trace(program: Program, color: int) -> Sequence[HeapEvent]:
    """The events of the one heap trace that tells of this memory space; empty where none does.

    It is the trace of a temporary allocation (a trace belongs to the allocation of its first
    event's buffer; what it says itself is not to be trusted), else the one with most events.
    """
    traces = program.proto.buffer_assignment.heap_simulator_traces
    owners = {}
    for trace in traces:
        if trace.events and (first := program.buffers.get(trace.events[0].buffer_id)):
            owners[first.allocation.index] = trace
    for allocation in program.allocations:
        if allocation.color == color and not _lasts(allocation) and allocation.index in owners:
            return owners[allocation.index].events
    colored = {i for i, buffer in program.buffers.items() if buffer.proto.color == color}
    counts = [sum(event.buffer_id in colored for event in trace.events) for trace in traces]
    return traces[counts.index(max(counts))].events if any(counts) else ()


class _Replay(NamedTuple):
    """A heap trace, run through.

    Attributes:
        sizes: Bytes live before each event, and after the last; empty without a trace.
        live: The buffers live at the peak, in order of allocation, as (the buffer whose memory it
            is, the buffer that lies in it at that time).
        spans: The events at which a buffer comes to life and is freed, by its id.
    """

    sizes: list[int]
    live: list[tuple[int, int]]
    spans: dict[int, tuple[int, int]]


def _replay(program: Program, events: Sequence[HeapEvent]) -> _Replay:
    """Run through a heap trace, as XProf does."""
    heap = _Heap(program, len(events))
    sizes = [0] if events else []
    for event in events:
        if event.buffer_id in program.buffers:
            heap.step(event)
        heap.position += 1
        sizes.append(heap.size_bytes)
    if events and len(heap.allocations) != 1:
        raise ProfileError(
            f"the heap trace of {program.name} runs through {len(heap.allocations)} allocations, "
            f"not one"
        )
    peak = sizes.index(max(sizes)) if sizes else 0
    live: dict[int, int] = {}
    for position, buffer, shown in heap.changes:
        if position >= peak:
            break
        if shown is None:
            live.pop(buffer, None)
        else:
            live[buffer] = shown
    return _Replay(sizes, list(live.items()), heap.spans)


class _Heap:
    """The state of a heap while its trace runs; buffers are counted as often as they are shared."""

    def __init__(self, program: Program, events: int) -> None:
        self.program = program
        self.last = events - 1
        self.position = 0
        self.size_bytes = 0
        self.references: dict[int, int] = {}
        self.canonical: dict[int, int] = {}
        self.reused: set[int] = set()
        self.spans: dict[int, tuple[int, int]] = {}
        self.changes: list[tuple[int, int, int | None]] = []
        self.allocations: set[int] = set()

    def step(self, event: HeapEvent) -> None:
        """One event of a buffer that is known."""
        buffer = event.buffer_id
        self.allocations.add(self.program.buffers[buffer].allocation.index)
        if event.kind == _ALLOC:
            self._refer(self._root(buffer))
            self._grow(buffer, buffer)
        elif event.kind == _FREE:
            self._free(buffer)
        elif event.kind == _SHARE:
            self._share(buffer, event.share_with_canonical_id)
        else:
            raise ProfileError(
                f"the heap trace of {self.program.name} has an event of kind {event.kind}, which "
                f"this version of hbmwatch does not know"
            )

    def _root(self, buffer: int) -> int:
        """The buffer whose memory this one lies in."""
        while buffer in self.canonical:
            buffer = self.canonical[buffer]
        return buffer

    def _refer(self, root: int) -> int:
        """Count a user of a buffer's memory; returns how many there are."""
        self.references[root] = self.references.get(root, 0) + 1
        return self.references[root]

    def _grow(self, buffer: int, shown: int) -> None:
        """A buffer's memory is taken, for the buffer that shows."""
        self.size_bytes += self.program.buffers[buffer].proto.size
        self.changes.append((self.position, buffer, shown))
        self.spans[shown] = (self.position, self.last)

    def _free(self, buffer: int) -> None:
        """A buffer goes; its memory is free when nobody shares it any more."""
        root = self._root(buffer)
        self.references[root] = self.references.get(root, 0) - 1
        if self.references[root] < 0:
            raise ProfileError(
                f"the heap trace of {self.program.name} frees buffer {buffer} more than once"
            )
        if self.references[root] == 0:
            self.size_bytes -= self.program.buffers[root].proto.size
            self.changes.append((self.position, root, None))
            if root not in self.reused:
                self._end(root)
        if buffer != root:
            self._end(buffer)

    def _end(self, buffer: int) -> None:
        """A buffer's span ends here, where it has one."""
        if buffer in self.spans:
            self.spans[buffer] = (self.spans[buffer][0], self.position)

    def _share(self, buffer: int, canonical: int) -> None:
        """A buffer lies down in the memory of another, which may have been freed before."""
        if canonical not in self.program.buffers:
            return
        root = self._root(canonical)
        if root == buffer:
            raise ProfileError(
                f"in the heap trace of {self.program.name} buffer {buffer} shares with itself"
            )
        self.canonical[buffer] = canonical
        if self._refer(root) == 1:
            self.reused.add(root)
            self._grow(root, buffer)


def _unpadded(buffer: Buffer) -> int:
    """Bytes that a buffer's elements take; its size, where the element type is not known."""
    shape = _shapes.subshape(buffer.instruction.shape, buffer.proto.defined_at.shape_index)
    unpadded = _shapes.unpadded_bytes(shape)
    return buffer.proto.size if unpadded is None else unpadded


def _rows(
    program: Program,
    buffers: Sequence[Buffer],
    spans: Mapping[int, tuple[int, int]],
    memory_space: str,
) -> tuple[PeakOp, ...]:
    """A row for each buffer, and one for all small ones."""
    rows = [
        _row(program, buffer, spans.get(buffer.proto.id), memory_space)
        for buffer in buffers
        if buffer.proto.size >= SMALL_BYTES
    ]
    small = sum(b.proto.size for b in buffers if b.proto.size < SMALL_BYTES)
    if small:
        rows.append(PeakOp(instruction="", size_bytes=small, memory_space=memory_space))
    return tuple(rows)


def _row(
    program: Program, buffer: Buffer, span: tuple[int, int] | None, memory_space: str
) -> PeakOp:
    """What is shown of one buffer."""
    instruction = buffer.instruction
    index = buffer.proto.defined_at.shape_index
    stack = program.frames(instruction)
    return PeakOp(
        instruction=instruction.name + (f"{{{','.join(map(str, index))}}}" if index else ""),
        opcode=instruction.opcode,
        op_name=instruction.metadata.op_name,
        shape=_shapes.shape_text(_shapes.subshape(instruction.shape, index)),
        size_bytes=buffer.proto.size,
        unpadded_bytes=_unpadded(buffer),
        kind=_kind(buffer.allocation),
        memory_space=memory_space,
        source=source_of(stack),
        stack=stack,
        start=None if span is None else span[0],
        end=None if span is None else span[1],
    )


def _kind(allocation: BufferAllocationProto) -> Kind:
    """XProf's category of an allocation."""
    if allocation.is_entry_computation_parameter:
        return "parameter"
    if allocation.maybe_live_out:
        return "output"
    if allocation.is_thread_local:
        return "thread-local"
    return "constant" if allocation.is_constant else "temporary"
