"""XLA's numbers, compared with those of the XLA that is installed."""

from __future__ import annotations

import pytest
from jaxlib import xla_client

from hbmwatch._xla.types import (
    MemoryColor,
    PrimitiveType,
    ShardingType,
    element_bits,
    float_bits,
    type_name,
)

# jaxlib's own names of two types.
RENAMED = {"PRIMITIVE_TYPE_INVALID": "INVALID", "OPAQUE_TYPE": "OPAQUE"}


def test_element_types_have_xla_s_numbers() -> None:
    """Each element type that jaxlib names has the same number here."""
    theirs = {RENAMED.get(m.name, m.name): int(m.value) for m in xla_client.PrimitiveType}

    assert {name: PrimitiveType[name].value for name in theirs} == theirs


def test_sharding_types_have_xla_s_numbers() -> None:
    """Each sharding type that jaxlib names has the same number here."""
    theirs = {m.name: int(m.value) for m in xla_client.OpSharding.Type}

    assert {name: ShardingType[name].value for name in theirs} == theirs


FLOATS = {
    PrimitiveType.F16: 16,
    PrimitiveType.BF16: 16,
    PrimitiveType.F32: 32,
    PrimitiveType.F64: 64,
    PrimitiveType.F8E5M2: 8,
    PrimitiveType.F8E4M3: 8,
    PrimitiveType.F8E3M4: 8,
    PrimitiveType.F8E4M3FN: 8,
    PrimitiveType.F8E4M3B11FNUZ: 8,
    PrimitiveType.F8E5M2FNUZ: 8,
    PrimitiveType.F8E4M3FNUZ: 8,
    PrimitiveType.F8E8M0FNU: 8,
    PrimitiveType.F6E3M2FN: 6,
    PrimitiveType.F6E2M3FN: 6,
    PrimitiveType.F4E2M1FN: 4,
}


def test_every_float_type_has_its_bits() -> None:
    """All 15 floating-point types and no other type have a number of bits as floats."""
    known = {kind: bits for kind in PrimitiveType if (bits := float_bits(kind)) is not None}

    assert known == FLOATS


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (PrimitiveType.PRED, 8),
        (PrimitiveType.S1, 1),
        (PrimitiveType.U2, 2),
        (PrimitiveType.S4, 4),
        (PrimitiveType.U64, 64),
        (PrimitiveType.C128, 128),
        (PrimitiveType.BF16, 16),
        (PrimitiveType.TUPLE, None),
        (PrimitiveType.TOKEN, None),
        (PrimitiveType.BUFFER, None),
        (99, None),
    ],
)
def test_an_element_has_the_bits_of_its_type(kind: int, bits: int | None) -> None:
    """Numbers have the bits of their name, a pred has 8; tuples and unknown types have none."""
    assert element_bits(kind) == bits


def test_a_type_s_name_is_xla_s() -> None:
    """Lower case, as in a shape's text; a type that hbmwatch does not know is its number."""
    kinds = (PrimitiveType.PRED, PrimitiveType.BF16, PrimitiveType.F8E4M3B11FNUZ, 99, -1)

    assert [*map(type_name, kinds)] == ["pred", "bf16", "f8e4m3b11fnuz", "type99", "type-1"]


def test_a_gpu_s_memory_spaces_share_a_tpu_s_numbers() -> None:
    """XLA:GPU's collective memory is color 1 and its temporaries are color 2."""
    assert (MemoryColor.COLLECTIVE, MemoryColor.TEMP) == (MemoryColor.VMEM, MemoryColor.SFLAG)
