"""XLA's numbers: element types, kinds of sharding, memory spaces, events of a heap trace."""

from __future__ import annotations

import re
from enum import IntEnum


class PrimitiveType(IntEnum):
    """The element type of a shape (xla_data.proto)."""

    INVALID = 0
    PRED = 1
    S8 = 2
    S16 = 3
    S32 = 4
    S64 = 5
    U8 = 6
    U16 = 7
    U32 = 8
    U64 = 9
    F16 = 10
    F32 = 11
    F64 = 12
    TUPLE = 13
    OPAQUE = 14
    C64 = 15
    BF16 = 16
    TOKEN = 17
    C128 = 18
    F8E5M2 = 19
    F8E4M3FN = 20
    S4 = 21
    U4 = 22
    F8E4M3B11FNUZ = 23
    F8E5M2FNUZ = 24
    F8E4M3FNUZ = 25
    S2 = 26
    U2 = 27
    F8E4M3 = 28
    F8E3M4 = 29
    S1 = 30
    U1 = 31
    F4E2M1FN = 32
    F8E8M0FNU = 33
    BUFFER = 34
    F6E3M2FN = 35
    F6E2M3FN = 36


class ShardingType(IntEnum):
    """What an OpSharding is (xla_data.proto)."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    OTHER = 3  # tiled
    MANUAL = 4
    UNKNOWN = 5
    UNREDUCED = 6


class MemoryColor(IntEnum):
    """The memory space of a buffer or an allocation: TPU's numbers, and two of a GPU's."""

    HBM = 0
    VMEM = 1
    SFLAG = 2
    CMEM = 3
    SMEM = 4
    HOST = 5
    SPARSECORE = 6
    COLLECTIVE = 1
    TEMP = 2


class HeapEventKind(IntEnum):
    """What happens to a buffer in a heap trace (HeapSimulatorTrace.Event.Kind, hlo.proto)."""

    ALLOC = 0
    FREE = 1
    SHARE_WITH = 2


# The number in the name of a type is its width: s4, bf16, f8e4m3fn.
_WIDTH = re.compile(r"(?:BF|[SUFC])(\d+)")
_BITS: dict[int, int] = {
    kind: int(match[1]) for kind in PrimitiveType if (match := _WIDTH.match(kind.name))
}
_BITS[PrimitiveType.PRED] = 8
_FLOAT_BITS: dict[int, int] = {
    kind: _BITS[kind] for kind in PrimitiveType if re.match(r"B?F\d", kind.name)
}
_NAMES: dict[int, str] = {kind: PrimitiveType(kind).name.lower() for kind in _BITS}


def type_name(element_type: int) -> str:
    """The name of an element type ("bf16"); "type99" for one that hbmwatch does not know."""
    return _NAMES.get(element_type, f"type{element_type}")


def element_bits(element_type: int) -> int | None:
    """Bits of one element ("s4": 4); None for what is no array, and for an unknown type."""
    return _BITS.get(element_type)


def float_bits(element_type: int) -> int | None:
    """Bits of a floating-point type ("f8e4m3fn": 8); None for every other type."""
    return _FLOAT_BITS.get(element_type)
