"""Values that are wider than the arguments, in every float type of XLA."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify, dtype
from hbmwatch._findings.dtype import dtype_name
from hbmwatch._xla.types import PrimitiveType, float_bits
from tests.findings.small import classified
from tests.hlo import BF16, F8, F16, F32, F64, MIB, S32, Hlo

FLOATS = {
    PrimitiveType.F16: "float16",
    PrimitiveType.F32: "float32",
    PrimitiveType.F64: "float64",
    PrimitiveType.BF16: "bfloat16",
    PrimitiveType.F8E5M2: "float8_e5m2",
    PrimitiveType.F8E4M3FN: "float8_e4m3fn",
    PrimitiveType.F8E4M3B11FNUZ: "float8_e4m3b11fnuz",
    PrimitiveType.F8E5M2FNUZ: "float8_e5m2fnuz",
    PrimitiveType.F8E4M3FNUZ: "float8_e4m3fnuz",
    PrimitiveType.F8E4M3: "float8_e4m3",
    PrimitiveType.F8E3M4: "float8_e3m4",
    PrimitiveType.F4E2M1FN: "float4_e2m1fn",
    PrimitiveType.F8E8M0FNU: "float8_e8m0fnu",
    PrimitiveType.F6E3M2FN: "float6_e3m2fn",
    PrimitiveType.F6E2M3FN: "float6_e2m3fn",
}


def program(argument: int, temporary: int, other: int = 0) -> Hlo:
    """An argument of 1024 x 1024, a temporary of another shape, and a float32 argument."""
    hlo = Hlo()
    hlo.parameter(1024, 1024, dtype=argument, path="w")
    if other:
        hlo.parameter(other, dtype=F32, path="scale")
    hlo.add("sort", dims=(1024, 512), dtype=temporary, name="jit(f)/sort")
    return hlo


@pytest.mark.parametrize(
    ("argument", "temporary", "title", "compute"),
    [
        (BF16, F32, "float32 temporaries in a bfloat16 program", "Compute in bfloat16"),
        (F16, F32, "float32 temporaries in a float16 program", "Compute in float16"),
        (F8, F32, "float32 temporaries in a float8_e4m3fn program", "Compute in bfloat16"),
        (F32, F64, "float64 temporaries in a float32 program", "Compute in float32"),
        (BF16, F64, "float64 temporaries in a bfloat16 program", "Compute in bfloat16"),
    ],
)
def test_the_finding_names_the_dtypes_of_the_program(
    argument: int, temporary: int, title: str, compute: str
) -> None:
    """The dtype that most argument bytes have, and that of the wide temporaries."""
    hlo = program(argument, temporary)
    finding = dtype.find(hlo.facts((hlo.instructions[-1]["id"],)))

    assert finding is not None
    assert (finding.slug, finding.title) == ("dtype", f"{compute}: {title}")
    assert finding.remedy.startswith(compute)


@pytest.mark.parametrize(
    ("argument", "temporary"),
    [(BF16, BF16), (F8, BF16), (F32, F32), (F64, F64), (S32, F32)],
    ids=["the same", "float8 and bfloat16", "float32", "float64", "no float arguments"],
)
def test_what_is_no_wider_has_no_finding(argument: int, temporary: int) -> None:
    """16 bits are narrow; and a float64 program computes in float64."""
    hlo = program(argument, temporary)

    assert dtype.find(hlo.facts((hlo.instructions[-1]["id"],))) is None


@pytest.mark.parametrize(("others", "is_found"), [(524288, False), (524287, True)])
def test_more_than_half_of_the_arguments_are_narrow(others: int, is_found: bool) -> None:
    """By bytes; half of the bytes is not enough."""
    hlo = program(BF16, F32, others)

    assert dtype.LEAST_SHARE_OF_ARGUMENTS == 0.5
    assert (dtype.find(hlo.facts((hlo.instructions[-1]["id"],))) is not None) == is_found


def test_half_of_the_wide_bytes_are_freed() -> None:
    """float32 becomes bfloat16."""
    hlo = program(BF16, F32)
    finding = dtype.find(hlo.facts((hlo.instructions[-1]["id"],)))

    assert finding is not None
    assert finding.saves_bytes == MIB


@pytest.mark.parametrize(("wide", "slug"), [(F32, "dtype"), (BF16, None)])
def test_a_whole_argument_that_is_cast_up_is_found(wide: int, slug: str | None) -> None:
    """float16 or bfloat16 to float32; the copy is the argument in another type."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=F16, path="w")
    made = hlo.add("convert", w, dims=(512, 512), dtype=wide, name="jit(f)/convert_element_type")

    assert classified(hlo.facts((made,))) == slug


def test_every_float_type_has_a_name_in_jax() -> None:
    """All 15 of XLA, under the names that JAX has for them."""
    assert {kind: dtype_name(kind) for kind in PrimitiveType if float_bits(kind)} == FLOATS


@pytest.mark.parametrize(
    ("narrow", "name", "slug"),
    [
        (BF16, "jit(f)/convert_element_type", "dtype"),
        (BF16, "jit(f)/dot_general", None),
        (F32, "jit(f)/convert_element_type", None),
    ],
    ids=["a copy in bfloat16", "cast by XLA for a product", "the same dtype"],
)
def test_a_whole_argument_that_is_cast_down_is_found(
    narrow: int, name: str, slug: str | None
) -> None:
    """A bfloat16 copy of all weights exists beside them."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=F32, path="w")
    made = hlo.add("convert", w, dims=(512, 512), dtype=narrow, name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize("updated", [False, True], ids=["read", "returned updated"])
def test_what_a_narrower_argument_frees(updated: bool) -> None:
    """The copy, and half of an argument that the program only reads."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=F32, path="w")
    name = "jit(f)/convert_element_type"
    made = hlo.add("convert", w, dims=(512, 512), dtype=BF16, name=name)
    alias = {"entries": [{"parameter_number": 0, "output_shape_index": []}]}
    (finding,) = classify.find(hlo.facts((made,), input_output_alias=alias if updated else {}))

    assert finding.saves_bytes == (MIB // 2 if updated else MIB)
