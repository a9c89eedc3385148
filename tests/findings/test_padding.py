"""Bytes that layouts add."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import padding, residuals
from hbmwatch._findings.padding import describe, tiled
from hbmwatch._records.peak_op import Kind, PeakOp
from tests.findings.cases import explain, explained, slugs
from tests.hlo import MIB, Hlo


def test_padding_is_size_less_elements() -> None:
    """The worst buffer is named, with its expansion."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(1024, 64), name="jit(f)/sort")
    finding = padding.find(hlo.facts((made,), sizes={made: MIB // 2}))

    assert finding is not None
    assert finding.title == "Padding: tiled layouts add 256 KiB (2.0x for f32[1024,64])"
    assert finding.saves_bytes == MIB // 4


@pytest.mark.parametrize(
    ("shape", "kind", "reason", "remedy"),
    [
        (
            "f32[33554432,3]{1,0:T(8,128)}",
            "parameter",
            ": dimension 1 (3) is padded to a multiple of 128 (128)",
            "Pass the array with dimension 0 (33554432) last instead of "
            "dimension 1 (3), as separate ",
        ),
        (
            "f32[33554432,3]{1,0:T(8,128)}",
            "temporary",
            ": dimension 1 (3) is padded to a multiple of 128 (128)",
            "If an array of the program has this shape: compute it at train.py:7 with dimension 0 "
            "(33554432) last instead of dimension 1 (3), as separate arrays without dimension 1",
        ),
        (
            "f32[33554432,64]{1,0:T(8,128)}",
            "parameter",
            ": dimension 1 (64) is padded to a multiple of 128 (128)",
            "Pass the array with dimension 0 (33554432) last instead of "
            "dimension 1 (64), as separate ",
        ),
        (
            "f32[33554432,65]{1,0:T(8,128)}",
            "parameter",
            ": dimension 1 (65) is padded to a multiple of 128 (128)",
            "Merge dimension 1 (65) with another dimension (reshape). A size of 128 takes the same "
            "memory as 65.",
        ),
        (
            "f32[1000,90,50000]{2,1,0:T(8,128)}",
            "temporary",
            ": dimension 1 (90) is padded to a multiple of 8 (96)",
            "If an array of the program has this shape: merge dimension 1 (90) with another "
            "dimension (reshape), or make it at most 88 where the program allows that. Compile "
            "again: XLA may choose another layout. A size of 96 takes the same memory as 90.",
        ),
        (
            "f32[3,100]{1,0:T(8,128)}",
            "parameter",
            ": dimension 0 (3) is padded to a multiple of 8 (8)",
            "Merge dimension 0 (3) with another dimension (reshape). A size of 8 takes the same "
            "memory as 3.",
        ),
        (
            "f32[32,2176,16,133,2]{2,4,3,1,0:T(2,128)}",
            "parameter",
            ": dimension 2 (16) is padded to a multiple of 128 (128)",
            "Merge dimension 2 (16) with another dimension (reshape). A size of 128 takes the "
            "same memory as 16.",
        ),
        (
            "f32[130]{0:T(128)}",
            "parameter",
            ": dimension 0 (130) is padded to a multiple of 128 (256)",
            "Merge dimension 0 (130) with another dimension (reshape), or make it at most 128 "
            "where the program allows that. A size of 256 takes the same memory as 130.",
        ),
        ("f32[130]", "temporary", "", "Merge small dimensions (reshape), so that the two minor"),
    ],
)
def test_the_padded_dimension_is_named_and_what_would_change_it(
    shape: str, kind: Kind, reason: str, remedy: str
) -> None:
    """The order of the dimensions is advised only where it decides, and is not the compiler's."""
    padded = tiled(shape)
    advice = padding.remedy(PeakOp("sort.1", shape=shape, kind=kind, source="train.py:7"), padded)

    assert describe(padded) == reason
    assert advice[: len(remedy)] == remedy
    assert padding.LEAST_TO_MOVE == 2


def test_padding_of_buffers_that_are_hardly_padded_counts_less() -> None:
    """Every program has some padding; the weight is full where a buffer is mostly padding."""
    weights = {}
    for expansion in (1.9, 2.0):
        hlo = Hlo()
        made = hlo.add("sort", dims=(1024, 256), name="jit(f)/sort")
        facts = hlo.facts((made,), sizes={made: int(expansion * MIB)})
        finding = padding.find(facts)
        assert finding is not None
        assert padding.ADVICE.weigh is not None
        weights[expansion] = padding.ADVICE.weigh(facts, finding)

    assert weights == {1.9: padding.PRIOR_WEIGHT / 2, padding.MOSTLY_PADDING: padding.PRIOR_WEIGHT}


@pytest.mark.parametrize(
    ("padded_residuals", "weight"),
    [(8, padding.PRIOR_WEIGHT), (9, residuals.ADVICE.prior_weight / 2)],
)
def test_padding_of_residuals_comes_after_the_residuals(
    padded_residuals: int, weight: float
) -> None:
    """Where more than half of the padding is in what need not be kept."""
    hlo = Hlo()
    saved = [hlo.add("sort", dims=(512, 512), name="jit(f)/jvp()/tanh") for _ in range(9)]
    for made in saved:
        hlo.add("negate", made, dims=(512, 512), name="jit(f)/transpose(jvp())/mul")
    others = [hlo.add("sort", dims=(256, 1024), name="jit(f)/sort") for _ in range(8)]
    padded = [*saved[:padded_residuals], *others]
    facts = hlo.facts((*saved, *others), sizes=dict.fromkeys(padded, 2 * MIB))
    finding = padding.find(facts)

    assert padding.SHARE_IN_RESIDUALS == 0.5
    assert finding is not None
    assert padding.ADVICE.weigh is not None
    assert padding.ADVICE.weigh(facts, finding) == weight


def test_small_buffers_are_no_padding() -> None:
    """The row of buffers below 16 KiB, which XProf counts as padding, is none."""
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4,), jnp.float32))
    assert slugs(explain(lowered).findings) == ["donation"]


@pytest.mark.tpu
def test_an_argument_in_another_layout_has_its_own_finding() -> None:
    """The compiler makes the padded copy: no order of dimensions in the program changes it."""
    assert slugs(explained("narrow_table").findings) == ["layout-copy"]


def test_padding_counts_only_in_the_buffers_that_are_named() -> None:
    """Three shapes at most, and none below a tenth of the largest; each is in the evidence."""
    hlo = Hlo()
    hlo.parameter(1024, 2, path="w")
    rows = (1024, 768, 640, 512, 64)
    made = [hlo.add("sort", dims=(size, 64), name="jit(f)/sort") for size in rows]
    sizes = {each: 2 * size * 256 for each, size in zip(made, rows, strict=True)}
    finding = padding.find(hlo.facts(made, sizes=sizes))

    assert finding is not None
    assert finding.saves_bytes == (1024 + 768 + 640) * 256
    assert len(finding.buffers) == padding.MOST_SHAPES == 3
    assert finding.evidence.count(" takes ") == 3
    assert finding.title.endswith("(2.0x for f32[1024,64], and in other buffers)")


@pytest.mark.parametrize(("rows", "count"), [(128, 2), (120, 1)])
def test_padding_below_a_tenth_of_the_largest_is_not_named(rows: int, count: int) -> None:
    """A tenth of 1280 rows, and less."""
    hlo = Hlo()
    hlo.parameter(1024, 2, path="w")
    made = [hlo.add("sort", dims=(size, 64), name="jit(f)/sort") for size in (1280, rows)]
    sizes = {each: 2 * size * 256 for each, size in zip(made, (1280, rows), strict=True)}
    finding = padding.find(hlo.facts(made, sizes=sizes))

    assert finding is not None
    assert len(finding.buffers) == count
    assert padding.LEAST_SHARE_OF_LARGEST == 0.1


def test_a_padded_size_that_one_argument_has_is_named_by_the_argument() -> None:
    """The compiler's array is not in the source, but the size is."""
    hlo = Hlo()
    hlo.parameter(64, 8, path="images")
    hlo.parameter(8, 512, path="w")

    assert padding.dims_of(hlo.facts((hlo.add("sort", dims=(4, 64)),))) == {
        64: "64 is dimension 0 of images",
        512: "512 is dimension 1 of w",
    }
