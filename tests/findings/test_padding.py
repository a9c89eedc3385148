"""Bytes that layouts add."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import padding, residuals
from hbmwatch._findings.padding import explain_padding
from hbmwatch._records.peak_op import PeakOp
from tests.findings.cases import explain, slugs
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
    ("shape", "reason", "remedy"),
    [
        (
            "f32[33554432,3]{1,0:T(8,128)}",
            ": dimension 1 (3) is padded to a multiple of 128",
            "Put the large dimension last: [3, 33554432] instead of [33554432, 3]",
        ),
        (
            "f32[3,100]{1,0:T(8,128)}",
            ": dimension 0 (3) is padded to a multiple of 8",
            "Put the large dimension last: [3, 100]",
        ),
        (
            "f32[130]{0:T(128)}",
            ": dimension 0 (130) is padded to a multiple of 128",
            "Make the two",
        ),
        ("f32[130]", "", "Make the two minor dimensions multiples of 8 and 128"),
    ],
)
def test_the_padded_dimension_is_named(shape: str, reason: str, remedy: str) -> None:
    """By the tile of the layout; without one, the general advice."""
    told, advice = explain_padding(PeakOp("sort.1", shape=shape))

    assert told == reason
    assert advice.startswith(remedy)


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
