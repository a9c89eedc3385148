"""Shapes, compared with the text of the XLA that is installed."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import pytest

from hbmwatch._xla.protos import HloModuleProto, ShapeProto, message_class, parse
from hbmwatch._xla.shapes import shape_text, subshape, unpadded_bytes

PRINTED = [
    "f32[8192,4096]{1,0}",
    "bf16[8,128,256]{2,1,0:T(8,128)(2,1)}",
    "f32[]",
    "f32[]{:T(128)}",
    "s32[7]{0:T(128)S(5)}",
    "f32[5,1024]{0,1:T(8,128)S(1)}",
    "s4[64,128]{1,0:E(4)}",
    "u4[64,128]{1,0:T(8,128)(4,1)E(4)S(1)}",
    "f8e4m3fn[16,16]{1,0}",
    "f8e5m2[16]{0}",
    "c64[3,5]{1,0}",
    "c128[3]{0}",
    "pred[10]{0}",
    "f32[<=8,4]{1,0}",
    "f32[?,4]{1,0}",
    "token[]",
    "()",
    "(f32[2]{0}, s32[])",
    "((f32[2]{0}, s32[]), u8[3]{0})",
    "(s8[1]{0}, s8[2]{0}, s8[3]{0}, s8[4]{0}, s8[5]{0}, /*index=5*/s8[6]{0}, s8[7]{0})",
    "f32[128]{0:T(256)L(256)}",
    "f32[256,128]{1,0:SC(0:64,128)}",
]


def _from_text() -> Any:
    """XLA's parser of HLO text, in the module where this jaxlib has it."""
    for home in ("jaxlib._hlo", "jaxlib._jax"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(home).hlo_module_from_text
    raise AssertionError("this jaxlib has no parser of HLO text")


def _shape(text: str) -> ShapeProto:
    """The shape that XLA reads in a text."""
    module = _from_text()(f"HloModule m\n\nENTRY e {{\n  ROOT p = {text} parameter(0)\n}}\n")
    proto = parse(HloModuleProto, module.as_serialized_hlo_module_proto(), "the module")
    return proto.computations[0].instructions[0].shape


@pytest.mark.parametrize("text", PRINTED)
def test_a_shape_reads_as_xla_prints_it(text: str) -> None:
    """The text of a shape is the one from which XLA's parser made it."""
    assert shape_text(_shape(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[8192,4096]{1,0:T(8,128)}", 4 * 8192 * 4096),
        ("f32[]{:T(128)}", 4),
        ("bf16[3,5]{1,0}", 2 * 15),
        ("s4[3,5]{1,0}", 15),
        ("s4[3,5]{1,0:E(4)}", 8),
        ("pred[10]{0}", 10),
        ("c128[3]{0}", 48),
        ("f32[0,8]{1,0}", 0),
        ("f32[<=8,4]{1,0}", 128),
        ("f32[?,4]{1,0}", None),
        ("token[]", 0),
        ("(f32[2]{0}, s32[])", 16),
    ],
)
def test_unpadded_bytes_are_those_of_the_elements(text: str, expected: int | None) -> None:
    """Padding does not count, nibbles take a byte unless packed, a tuple 8 bytes an entry."""
    assert unpadded_bytes(_shape(text)) == expected


def test_an_unknown_element_type_prints_as_its_number() -> None:
    """An unknown type keeps its dimensions and layout; its bytes are unknown."""
    shape = message_class(ShapeProto)(element_type=99, dimensions=[4, 8])
    shape.layout.minor_to_major.extend([1, 0])
    assert shape_text(shape) == "type99[4,8]{1,0}"
    assert unpadded_bytes(shape) is None


def test_a_buffer_shape_is_the_shape_that_it_holds() -> None:
    """XLA's buffer type prints as b(...), and takes the bytes of its content."""
    inner = message_class(ShapeProto)(element_type=11, dimensions=[4])
    inner.layout.minor_to_major.append(0)
    shape = message_class(ShapeProto)(element_type=34, tuple_shapes=[inner])
    assert (shape_text(shape), unpadded_bytes(shape)) == ("b(f32[4]{0})", 16)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([], "(f32[2]{0}, s32[])"),
        ([1], "s32[]"),
        ([1, 0], "f32[2]{0}"),
        ([2], "(f32[2]{0}, s32[])"),
        ([-1], "(f32[2]{0}, s32[])"),
    ],
)
def test_a_shape_index_points_as_xprof_takes_it(index: list[int], expected: str) -> None:
    """The last number counts, into the outermost tuple; one that points nowhere changes nothing."""
    shape = subshape(_shape("(f32[2]{0}, s32[])"), index)
    assert shape_text(shape) == expected
