"""XLA's programs, for the rest of the package: a profile's modules, and a module's memory peak.

The peak follows XProf's Memory Viewer, to the byte
(xprof/convert/hlo_proto_to_memory_visualization_utils.cc); tests hold it against XProf itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import Kind, PeakOp
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.heap import has_indefinite_lifetime, heap_trace, replay
from hbmwatch._xla.program import Buffer, Program
from hbmwatch._xla.protos import BufferAllocationProto
from hbmwatch._xla.shapes import UNKNOWN, shape_text, subshape, unpadded_bytes
from hbmwatch._xla.terms import SMALL_BYTES, memory_color

# Text and unpadded bytes, if known, of each serialized shape.
_Described = dict[bytes, tuple[str, int | None]]


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
    lasting = [
        (a, b)
        for a in allocations
        if has_indefinite_lifetime(a)
        if (b := _largest(program, a)) is not None
    ]
    lasting_bytes = sum(a.size for a, _ in lasting)
    heap = replay(program, heap_trace(program, color))
    points = np.array(heap.sizes, dtype=np.int64) + lasting_bytes
    points.flags.writeable = False
    shapes: _Described = {}
    shown = [b for _, b in lasting] + [shown for _, shown in heap.live]
    peak_bytes = max(heap.sizes, default=0) + lasting_bytes
    total_bytes = sum(a.size for a in allocations)
    return PeakSummary(
        module=program.module,
        program_id=program.program_id,
        memory_space=memory_space,
        peak_bytes=peak_bytes,
        peak_unpadded_bytes=lasting_bytes
        + sum(_described(canonical, shapes)[1] for canonical, _ in heap.live),
        peak_position=int(points.argmax()) if heap.sizes else None,
        heap_bytes=points,
        parameter_bytes=sum(a.size for a in allocations if a.is_entry_computation_parameter),
        output_bytes=sum(
            a.size for a in allocations if a.maybe_live_out and not a.is_entry_computation_parameter
        ),
        aliased_bytes=sum(
            a.size for a in allocations if a.maybe_live_out and a.is_entry_computation_parameter
        ),
        temporary_bytes=sum(a.size for a in allocations if not has_indefinite_lifetime(a)),
        total_allocation_bytes=total_bytes,
        fragmentation_bytes=total_bytes - peak_bytes if heap.sizes else 0,
        ops=_rows(program, shown, shapes, heap.spans, memory_space),
    )


def caveats(summary: PeakSummary) -> tuple[str, ...]:
    """Sentences on what this reader does not know in the rows of a peak; empty for most.

    Args:
        summary: A peak, by either reader.
    """
    unknown = {int(kind) for op in summary.ops for kind in UNKNOWN.findall(op.shape)}
    return tuple(
        f"{summary.module}({summary.program_id}) has buffers of XLA's element type {kind}, which "
        f"this version of hbmwatch does not know: their sizes are right, their padding is not known"
        for kind in sorted(unknown)
    )


def _largest(program: Program, allocation: BufferAllocationProto) -> Buffer | None:
    """The buffer that stands for an allocation: its largest, the first of equals; None if empty."""
    found = None
    for assigned in allocation.assigned:
        buffer = program.buffer(assigned.logical_buffer_id)
        if buffer is not None and buffer.proto.size > (found.proto.size if found else 0):
            found = buffer
    return found


def _rows(
    program: Program,
    buffers: Sequence[Buffer],
    shapes: _Described,
    spans: Mapping[int, tuple[int, int]],
    memory_space: str,
) -> tuple[PeakOp, ...]:
    """A row for each buffer, and one for all small ones."""
    rows = [
        _row(program, buffer, shapes, spans.get(buffer.proto.id), memory_space)
        for buffer in buffers
        if buffer.proto.size >= SMALL_BYTES
    ]
    small = sum(b.proto.size for b in buffers if b.proto.size < SMALL_BYTES)
    if small:
        rows.append(PeakOp(instruction="", size_bytes=small, memory_space=memory_space))
    return tuple(rows)


def _described(buffer: Buffer, known: _Described) -> tuple[str, int]:
    """The shape of a buffer as text, and the bytes of its elements: its size where not known.

    Equal shapes are described once, as layers repeat them.
    """
    shape = subshape(buffer.instruction.shape, buffer.proto.defined_at.shape_index)
    serialized = shape.SerializeToString()
    if serialized not in known:
        known[serialized] = shape_text(shape), unpadded_bytes(shape)
    text, unpadded = known[serialized]
    return text, buffer.proto.size if unpadded is None else unpadded


def _row(
    program: Program,
    buffer: Buffer,
    shapes: _Described,
    span: tuple[int, int] | None,
    memory_space: str,
) -> PeakOp:
    """What is shown of one buffer."""
    instruction = buffer.instruction
    index = buffer.proto.defined_at.shape_index
    shape, unpadded_bytes = _described(buffer, shapes)
    stack = program.frames(instruction)
    return PeakOp(
        instruction=instruction.name + (f"{{{','.join(map(str, index))}}}" if index else ""),
        opcode=instruction.opcode,
        op_name=instruction.metadata.op_name,
        shape=shape,
        size_bytes=buffer.proto.size,
        unpadded_bytes=unpadded_bytes,
        kind=_kind(buffer.allocation),
        memory_space=memory_space,
        source=user_frame(stack),
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
