"""A second copy of an argument in another layout."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify
from tests.findings.small import classified
from tests.hlo import MIB, Hlo, shape_of

OTHER = (0, 1)


@pytest.mark.parametrize(
    ("opcode", "order", "slug"),
    [("copy", OTHER, "layout-copy"), ("copy", (1, 0), None), ("negate", OTHER, None)],
    ids=["another layout", "the same layout", "computed"],
)
def test_a_moved_argument_is_a_copy(opcode: str, order: tuple[int, int], slug: str | None) -> None:
    """Only where its layout differs, and nothing is computed."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    made = hlo.add(opcode, x, shape=shape_of(512, 512, minor_to_major=order))

    assert classified(hlo.facts((made,))) == slug


def test_a_copy_in_another_memory_space_has_the_same_layout() -> None:
    """The layout is compared, not S(1)."""
    hlo = Hlo()
    shape = shape_of(512, 512)
    shape["layout"]["memory_space"] = 1
    made = hlo.add("copy", hlo.parameter(shape=shape, path="x"), dims=(512, 512))

    assert classified(hlo.facts((made,))) is None


def test_a_padded_copy_is_found_too() -> None:
    """Padding is why the layout differs; the evidence names the argument."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="table")
    made = hlo.add("copy", x, shape=shape_of(512, 512, minor_to_major=OTHER))
    (finding,) = classify.find(hlo.facts((made,), sizes={made: 4 * MIB}))

    assert (finding.slug, finding.saves_bytes) == ("layout-copy", 4 * MIB)
    assert "a copy of the argument table" in finding.evidence
