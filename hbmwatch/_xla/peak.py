"""The memory peak of a program, computed as XProf's Memory Viewer computes it, to the byte.

The original is xprof/convert/hlo_proto_to_memory_visualization_utils.cc. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbmwatch._records.peak import MOST_OTHER_OPS, PeakSummary
from hbmwatch._records.peak_op import Kind, PeakOp
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.heap import LARGEST_TOTAL_BYTES, has_indefinite_lifetime, heap_of
from hbmwatch._xla.program import Buffer, Program
from hbmwatch._xla.protos import BufferAllocationProto
from hbmwatch._xla.shapes import UNKNOWN, shape_text, subshape, unpadded_bytes
from hbmwatch._xla.terms import SMALL_BYTES, memory_color

# Text and unpadded bytes, if known, of each serialized shape.
_Shapes = dict[bytes, tuple[str, int | None]]


def peak_summary(program: Program, memory_space: str = "hbm") -> PeakSummary:
    """The memory peak of a program in one memory space, as XProf's Memory Viewer computes it.

    The rows are first the allocations that live through the whole program (parameters, outputs,
    constants), then the buffers of the heap trace that are live at the peak, in the order of their
    allocation. XProf lists the former in HBM only; here every memory space lists them, so that the
    sizes sum to the peak. XProf counts the row of small buffers as 0 bytes unpadded.

    Raises:
        ProfileError: The program has no buffer assignment, or an inconsistent one.
        ValueError: No such memory space.
    """
    color = memory_color(memory_space)
    if not program.proto.HasField("buffer_assignment"):
        raise ProfileError(f"{program.name} has no buffer assignment, so its peak is unknown")
    allocations = [a for a in program.allocations if a.color == color and not a.is_thread_local]
    parameters = [a for a in allocations if a.is_entry_computation_parameter]
    live_out = [a for a in allocations if a.maybe_live_out]
    aliased_bytes = sum(a.size for a in live_out if a.is_entry_computation_parameter)
    whole_program = [
        (allocation, buffer)
        for allocation in allocations
        if has_indefinite_lifetime(allocation)
        if (buffer := _largest_buffer(program, allocation)) is not None
    ]
    whole_program_bytes = sum(allocation.size for allocation, _ in whole_program)
    total_bytes = _total_bytes(program, allocations)
    heap = heap_of(program, color)
    heap_bytes = np.array(heap.sizes, dtype=np.int64) + whole_program_bytes
    heap_bytes.flags.writeable = False
    peak_bytes = max(heap.sizes, default=0) + whole_program_bytes
    shapes: _Shapes = {}
    live = [buffer for _, buffer in whole_program] + [user for _, user in heap.live]
    return PeakSummary(
        module=program.module,
        program_id=program.program_id,
        memory_space=memory_space,
        peak_bytes=peak_bytes,
        peak_unpadded_bytes=whole_program_bytes
        + sum(_describe(owner, shapes)[1] for owner, _ in heap.live),
        peak_position=int(heap_bytes.argmax()) if heap.sizes else None,
        heap_bytes=heap_bytes,
        parameter_bytes=sum(a.size for a in parameters),
        output_bytes=max(sum(a.size for a in live_out) - aliased_bytes, 0),
        aliased_bytes=aliased_bytes,
        temporary_bytes=sum(a.size for a in allocations if not has_indefinite_lifetime(a)),
        total_allocation_bytes=total_bytes,
        fragmentation_bytes=max(total_bytes - peak_bytes, 0) if heap.sizes else 0,
        ops=_rows(program, live, shapes, heap.spans, memory_space),
    )


def other_ops(program: Program, memory_space: str = "hbm") -> tuple[PeakOp, ...]:
    """The buffers that are live at other program points only; see PeakSummary.other_ops.

    Raises:
        ProfileError: The heap trace is inconsistent.
    """
    heap = heap_of(program, memory_color(memory_space))
    large = [row for row in heap.others if row[0].proto.size >= SMALL_BYTES]
    if len(large) > MOST_OTHER_OPS:
        least = sorted(row[0].proto.size for row in large)[-MOST_OTHER_OPS]
        large = [row for row in large if row[0].proto.size >= least][:MOST_OTHER_OPS]
    shapes: _Shapes = {}
    return tuple(
        _row(program, buffer, shapes, (start, end), memory_space) for buffer, start, end in large
    )


def _total_bytes(program: Program, allocations: Sequence[BufferAllocationProto]) -> int:
    """The sum of allocations; ProfileError if no memory could hold them."""
    total = sum(allocation.size for allocation in allocations)
    if total > LARGEST_TOTAL_BYTES:
        raise ProfileError(
            f"{program.name} is damaged: its allocations add up to more than 2**62 bytes"
        )
    return total


def caveats(summary: PeakSummary) -> tuple[str, ...]:
    """Sentences on the element types in a peak that hbmwatch does not know; empty for most.

    Args:
        summary: A peak, by either reader.
    """
    unknown = {int(kind) for op in summary.ops for kind in UNKNOWN.findall(op.shape)}
    return tuple(
        f"{summary.module}({summary.program_id}) has buffers of XLA's element type {kind}, which "
        f"this version of hbmwatch does not know: their sizes are right, their padding is unknown"
        for kind in sorted(unknown)
    )


def _largest_buffer(program: Program, allocation: BufferAllocationProto) -> Buffer | None:
    """The largest buffer of an allocation, the first of equals; None if all are empty."""
    largest = None
    for assigned in allocation.assigned:
        buffer = program.buffer(assigned.logical_buffer_id)
        if buffer is not None and buffer.proto.size > (largest.proto.size if largest else 0):
            largest = buffer
    return largest


def _rows(
    program: Program,
    buffers: Sequence[Buffer],
    shapes: _Shapes,
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


def _describe(buffer: Buffer, known: _Shapes) -> tuple[str, int]:
    """The shape of a buffer as text, and the bytes of its elements; its size where unknown.

    Layers repeat their shapes, so each is described once.
    """
    shape = subshape(buffer.instruction.shape, buffer.proto.defined_at.shape_index)
    serialized = shape.SerializeToString()
    if serialized not in known:
        known[serialized] = shape_text(shape), unpadded_bytes(shape)
    text, unpadded = known[serialized]
    return text, buffer.proto.size if unpadded is None else unpadded


def row_name(buffer: Buffer) -> str:
    """The instruction of a buffer as its row names it, with its place in a tuple ("fusion{1}")."""
    index = buffer.proto.defined_at.shape_index
    return buffer.instruction.name + (f"{{{','.join(map(str, index))}}}" if index else "")


def _row(
    program: Program,
    buffer: Buffer,
    shapes: _Shapes,
    span: tuple[int, int] | None,
    memory_space: str,
) -> PeakOp:
    """The row of one buffer."""
    instruction = buffer.instruction
    shape, unpadded_bytes = _describe(buffer, shapes)
    frames = program.stack(instruction)
    stack = tuple(frame.line for frame in frames)
    return PeakOp(
        instruction=row_name(buffer),
        opcode=instruction.opcode,
        op_name=instruction.metadata.op_name,
        shape=shape,
        size_bytes=buffer.proto.size,
        unpadded_bytes=unpadded_bytes,
        kind=_kind(buffer.allocation),
        memory_space=memory_space,
        source=user_frame(stack),
        stack=stack,
        functions=tuple(frame.function for frame in frames),
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
