"""Programs for the tests of the reader: changed real ones, and small ones made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hbmwatch._records.peak import PeakSummary
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloProto, message_class
from tests import programs

GIB, MIB = 2**30, 2**20
EVENT_FIELDS = ("kind", "buffer_id", "share_with_canonical_id")
SPACES = ("hbm", "vmem", "sflag", "cmem", "smem", "host")


def changed(change: Callable[[Any], None], name: str = "donated") -> bytes:
    """A program's HloProto with a change made to it."""
    proto = message_class(HloProto).FromString(programs.compiled(name, "cpu").hlo_proto)
    change(proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def peak_of(hlo_proto: bytes, memory_space: str = "hbm") -> PeakSummary:
    """The peak of a serialized program."""
    return peak_summary(parse_program(hlo_proto, "jit_train_step(7)"), memory_space)


def frame_cycle(proto: Any) -> None:
    for number, frame in enumerate(proto.hlo_module.stack_frame_index.stack_frames, start=1):
        frame.parent_frame_id = number


def no_trace(proto: Any) -> None:
    del proto.buffer_assignment.heap_simulator_traces[:]


def made(
    *allocations: dict[str, Any],
    traces: tuple[tuple[tuple[int, ...], ...], ...] = (),
    shapes: dict[int, dict[str, Any]] | None = None,
) -> Program:
    """A program of one computation, with an instruction "iN" for each buffer N.

    Args:
        allocations: Fields of BufferAllocationProto, and `buffers`: the size of each buffer by id.
            An allocation is as large as its largest buffer unless it says another size.
        traces: Events of heap traces, as (HeapEventKind, buffer id[, canonical buffer id]).
        shapes: Shapes of instructions; u8[size] for others.
    """
    logical, instructions, listed = [], [], []
    for index, allocation in enumerate(allocations):
        fields = {"index": index, **allocation}
        buffers: dict[int, int] = fields.pop("buffers")
        fields.setdefault("size", max(buffers.values(), default=0))
        listed.append({**fields, "assigned": [{"logical_buffer_id": n} for n in buffers]})
        for number, size in buffers.items():
            defined_at = {"instruction_id": number}
            color = fields.get("color", 0)
            logical.append({"id": number, "size": size, "color": color, "defined_at": defined_at})
            shape = (shapes or {}).get(number, {"element_type": 6, "dimensions": [size]})
            instructions.append(
                {"id": number, "name": f"i{number}", "opcode": "add", "shape": shape}
            )
    events = [
        {"events": [dict(zip(EVENT_FIELDS, event, strict=False)) for event in trace]}
        for trace in traces
    ]
    computation = {"id": 1, "name": "main", "instructions": instructions}
    proto = message_class(HloProto)(
        hlo_module={"name": "jit_f", "entry_computation_id": 1, "computations": [computation]},
        buffer_assignment={
            "logical_buffers": logical,
            "buffer_allocations": listed,
            "heap_simulator_traces": events,
        },
    )
    return parse_program(proto.SerializeToString(), "jit_f(7)")
