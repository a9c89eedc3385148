"""The parts of XLA's and the profiler's protos that we read, as types and as wire format.

Each class declares the fields that we read, with their numbers; protobuf skips all others. The
descriptors are in a private pool, so that they never clash with TensorFlow's.
Sources: xla/service/hlo.proto, xla/xla_data.proto, tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from hbmwatch._records.profile_error import ProfileError

Ints = Sequence[int]
T = TypeVar("T", bound="Message")


class Message:
    """A protobuf message; its annotations are its fields, with their numbers."""

    if TYPE_CHECKING:

        def HasField(self, name: str) -> bool:
            """Whether a message field is there."""

        def SerializeToString(self) -> bytes:
            """The message in wire format."""


class XStat(Message):
    """The values are a oneof, so that protobuf writes a program_id of 0."""

    metadata_id: Annotated[int, 1]
    int64_value: Annotated[int, 4, "value"]
    str_value: Annotated[str, 5, "value"]
    bytes_value: Annotated[bytes, 6, "value"]
    ref_value: Annotated[int, 7, "value"]


class XEventMetadata(Message):
    id: Annotated[int, 1]
    name: Annotated[str, 2]
    stats: Annotated[Sequence[XStat], 5]


class XEventMetadataEntry(Message):
    key: Annotated[int, 1]
    value: Annotated[XEventMetadata, 2]


class XStatMetadata(Message):
    id: Annotated[int, 1]
    name: Annotated[str, 2]


class XStatMetadataEntry(Message):
    key: Annotated[int, 1]
    value: Annotated[XStatMetadata, 2]


class XEvent(Message):
    metadata_id: Annotated[int, 1]
    stats: Annotated[Sequence[XStat], 4]


class XLine(Message):
    """The events are unparsed, as there may be millions."""

    events: Annotated[Sequence[bytes], 4]


class XPlane(Message):
    """The lines are unparsed."""

    name: Annotated[str, 2]
    lines: Annotated[Sequence[bytes], 3]
    event_metadata: Annotated[Sequence[XEventMetadataEntry], 4]
    stat_metadata: Annotated[Sequence[XStatMetadataEntry], 5]
    stats: Annotated[Sequence[XStat], 6]


class XSpace(Message):
    planes: Annotated[Sequence[XPlane], 1]
    hostnames: Annotated[Sequence[str], 4]


class TileProto(Message):
    dimensions: Annotated[Ints, 1]


class SplitConfigProto(Message):
    dimension: Annotated[int, 1]
    split_indices: Annotated[Ints, 2]


class LayoutProto(Message):
    minor_to_major: Annotated[Ints, 1]
    tiles: Annotated[Sequence[TileProto], 6]
    element_size_in_bits: Annotated[int, 7]
    memory_space: Annotated[int, 8]
    dynamic_shape_metadata_prefix_bytes: Annotated[int, 15]
    tail_padding_alignment_in_elements: Annotated[int, 16]
    split_configs: Annotated[Sequence[SplitConfigProto], 17]


class ShapeProto(Message):
    element_type: Annotated[int, 2]
    dimensions: Annotated[Ints, 3]
    tuple_shapes: Annotated[Sequence[ShapeProto], 4]
    layout: Annotated[LayoutProto, 5]
    is_dynamic_dimension: Annotated[Sequence[bool], 6]


class OpMetadata(Message):
    op_name: Annotated[str, 2]
    source_file: Annotated[str, 3]
    source_line: Annotated[int, 4]
    stack_frame_id: Annotated[int, 15]


class MeshAxisProto(Message):
    name: Annotated[str, 1]
    size: Annotated[int, 2]


class MeshProto(Message):
    axes: Annotated[Sequence[MeshAxisProto], 1]


class SubAxisProto(Message):
    size: Annotated[int, 2]


class AxisRefProto(Message):
    mesh_axis_index: Annotated[int, 1]
    sub_axis_info: Annotated[SubAxisProto, 2]


class DimShardingProto(Message):
    axes: Annotated[Sequence[AxisRefProto], 1]


class NamedShardingProto(Message):
    """What jaxlib 0.12 writes instead of tiles; a mesh without axes is replicated."""

    mesh: Annotated[MeshProto, 2]
    dim_shardings: Annotated[Sequence[DimShardingProto], 3]


class OpSharding(Message):
    """With a named sharding the type is ShardingType.REPLICATED, and there are no tiles."""

    type: Annotated[int, 1]
    tile_assignment_dimensions: Annotated[Ints, 3]
    tuple_shardings: Annotated[Sequence[OpSharding], 5]
    named_sharding: Annotated[NamedShardingProto, 14]


class OutputOperandAliasing(Message):
    output_shape_index: Annotated[Ints, 1]
    operand_index: Annotated[int, 2]


class HloInstructionProto(Message):
    name: Annotated[str, 1]
    opcode: Annotated[str, 2]
    shape: Annotated[ShapeProto, 3]
    metadata: Annotated[OpMetadata, 7]
    parameter_number: Annotated[int, 9]
    tuple_index: Annotated[int, 13]
    dimensions: Annotated[Ints, 14]
    custom_call_target: Annotated[str, 28]
    id: Annotated[int, 35]
    operand_ids: Annotated[Ints, 36]
    called_computation_ids: Annotated[Ints, 38]
    output_operand_aliasing: Annotated[Sequence[OutputOperandAliasing], 74]


class HloComputationProto(Message):
    name: Annotated[str, 1]
    instructions: Annotated[Sequence[HloInstructionProto], 2]
    id: Annotated[int, 5]
    root_id: Annotated[int, 6]


class AliasEntryProto(Message):
    output_shape_index: Annotated[Ints, 1]
    parameter_number: Annotated[int, 2]


class HloInputOutputAliasProto(Message):
    entries: Annotated[Sequence[AliasEntryProto], 1]


class BufferDonorEntryProto(Message):
    parameter_number: Annotated[int, 1]


class HloBufferDonorProto(Message):
    entries: Annotated[Sequence[BufferDonorEntryProto], 1]


class FileLocation(Message):
    file_name_id: Annotated[int, 1]
    function_name_id: Annotated[int, 2]
    line: Annotated[int, 3]


class StackFrame(Message):
    file_location_id: Annotated[int, 1]
    parent_frame_id: Annotated[int, 2]


class StackFrameIndexProto(Message):
    """All ids in here count from 1; 0 is none."""

    file_names: Annotated[Sequence[str], 1]
    function_names: Annotated[Sequence[str], 2]
    file_locations: Annotated[Sequence[FileLocation], 3]
    stack_frames: Annotated[Sequence[StackFrame], 4]


class DeviceAssignmentProto(Message):
    replica_count: Annotated[int, 1]
    computation_count: Annotated[int, 2]


class FrontendAttribute(Message):
    key: Annotated[str, 1]


class FrontendAttributes(Message):
    map: Annotated[Sequence[FrontendAttribute], 1]


class HloModuleProto(Message):
    name: Annotated[str, 1]
    entry_computation_name: Annotated[str, 2]
    computations: Annotated[Sequence[HloComputationProto], 3]
    id: Annotated[int, 5]
    entry_computation_id: Annotated[int, 6]
    input_output_alias: Annotated[HloInputOutputAliasProto, 8]
    spmd_output_sharding: Annotated[OpSharding, 12]
    spmd_parameters_shardings: Annotated[Sequence[OpSharding], 14]
    device_assignment: Annotated[DeviceAssignmentProto, 15]
    stack_frame_index: Annotated[StackFrameIndexProto, 17]
    buffer_donor: Annotated[HloBufferDonorProto, 18]
    frontend_attributes: Annotated[FrontendAttributes, 19]


class Location(Message):
    shape_index: Annotated[Ints, 3]
    instruction_id: Annotated[int, 4]


class LogicalBufferProto(Message):
    id: Annotated[int, 1]
    size: Annotated[int, 2]
    defined_at: Annotated[Location, 3]
    color: Annotated[int, 4]


class Assigned(Message):
    logical_buffer_id: Annotated[int, 1]


class BufferAllocationProto(Message):
    index: Annotated[int, 1]
    size: Annotated[int, 2]
    is_thread_local: Annotated[bool, 3]
    is_entry_computation_parameter: Annotated[bool, 5]
    maybe_live_out: Annotated[bool, 7]
    color: Annotated[int, 8]
    assigned: Annotated[Sequence[Assigned], 9]
    is_constant: Annotated[bool, 12]


class HeapEvent(Message):
    """Kinds: 0 alloc, 1 free, 2 share with."""

    kind: Annotated[int, 1]
    buffer_id: Annotated[int, 2]
    share_with_canonical_id: Annotated[int, 5]


class HeapSimulatorTrace(Message):
    events: Annotated[Sequence[HeapEvent], 1]


class BufferAssignmentProto(Message):
    logical_buffers: Annotated[Sequence[LogicalBufferProto], 1]
    buffer_allocations: Annotated[Sequence[BufferAllocationProto], 3]
    heap_simulator_traces: Annotated[Sequence[HeapSimulatorTrace], 4]


class HloProto(Message):
    hlo_module: Annotated[HloModuleProto, 1]
    buffer_assignment: Annotated[BufferAssignmentProto, 3]


_ROOTS: tuple[type[Message], ...] = (XSpace, XLine, XEvent, HloProto)
_SCALARS = {
    # Every integer, enum and bool is a varint, so int64 reads all of them.
    int: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    bool: descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    str: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    bytes: descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}


def _pool(roots: tuple[type[Message], ...]) -> descriptor_pool.DescriptorPool:
    """A pool with every message that can be reached from some of them."""
    file = descriptor_pb2.FileDescriptorProto(
        name="hbmwatch.proto", package="hbmwatch", syntax="proto3"
    )
    todo: list[type[Message]] = list(roots)
    seen = set(todo)
    while todo:
        for used in _declare(file, todo.pop()):
            if used not in seen:
                seen.add(used)
                todo.append(used)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _declare(file: descriptor_pb2.FileDescriptorProto, kind: type[Message]) -> list[type[Message]]:
    """Declare one message from its class; returns the messages that its fields hold."""
    message = file.message_type.add(name=kind.__name__)
    used = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        declared, number, *oneof = get_args(hint)
        field = message.field.add(name=name, number=number)
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof[0])
            field.oneof_index = 0
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        if get_origin(declared) is not None:
            field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            (declared,) = get_args(declared)
        if declared in _SCALARS:
            field.type = _SCALARS[declared]
        else:
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".hbmwatch.{declared.__name__}"
            used.append(declared)
    return used


@functools.cache
def _classes(roots: tuple[type[Message], ...]) -> dict[str, Any]:
    """The protobuf message classes that can be reached from some of them, by name."""
    file = _pool(roots).FindFileByName("hbmwatch.proto")
    return {
        name: message_factory.GetMessageClass(descriptor)
        for name, descriptor in file.message_types_by_name.items()
    }


def message_class(kind: type[Message]) -> Any:
    """The protobuf message class of one of the classes above, or of another module's."""
    is_here = kind.__module__ == __name__
    return _classes(_ROOTS if is_here else (kind,))[kind.__name__]


def parse(kind: type[T], data: bytes, what: str) -> T:
    """The message in these bytes.

    Args:
        kind: One of the classes above.
        data: The serialized message.
        what: What the bytes are, for the error ("the profile h.xplane.pb").

    Raises:
        ProfileError: The bytes are not such a message.
    """
    try:
        return cast(T, message_class(kind).FromString(data))
    except DecodeError as error:
        raise ProfileError(
            f"{what} is damaged or is not a serialized {kind.__name__}: {error} ({len(data)} bytes)"
        ) from error
