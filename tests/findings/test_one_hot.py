"""A one-hot matrix, by name or by its operations."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from tests.findings.small import classified
from tests.hlo import PRED, S32, Hlo

DIMS = (1024, 1024)


def compared(other: str, name: str = "jit(f)/eq", last: str = "compare") -> ProgramFacts:
    """A broadcast index, compared with an iota or with another broadcast."""
    hlo = Hlo()
    index = hlo.parameter(1024, dtype=S32)
    spread = hlo.add("broadcast", index, dims=DIMS, dtype=S32)
    against = hlo.add(other, hlo.parameter(1024, dtype=S32), dims=DIMS, dtype=S32)
    equal = hlo.add("compare", spread, against, dims=DIMS, dtype=PRED, name=name)
    made = equal if last == "compare" else hlo.add(last, equal, dims=DIMS, name=name)
    return hlo.facts((made,))


@pytest.mark.parametrize(
    ("other", "name", "last", "slug"),
    [
        ("iota", "jit(f)/eq", "convert", "one-hot"),
        ("iota", "jit(f)/eq", "compare", "one-hot"),
        ("iota", "jit(f)/eq", "select", None),
        ("broadcast", "jit(f)/eq", "convert", "pairwise"),
        ("broadcast", "jit(f)/jit(_one_hot)/eq", "convert", "one-hot"),
        ("broadcast", "jit(f)/transpose(jvp(jit(_one_hot)))/add_any", "select", "pairwise"),
    ],
    ids=["cast", "as it is", "a mask", "two indices", "by name", "its cotangent"],
)
def test_an_index_compared_with_an_iota_is_one_hot(
    other: str, name: str, last: str, slug: str | None
) -> None:
    """A mask that selects is none, and two indices are pairs."""
    assert classified(compared(other, name, last)) == slug


@pytest.mark.parametrize("around", ["iota", "add"], ids=["along a dimension", "along split ones"])
def test_an_identity_matrix_has_no_index(around: str) -> None:
    """jnp.eye compares positions with positions; no table can be indexed instead."""
    hlo = Hlo()
    rows = hlo.add(around, dims=(1024,), dtype=S32, name="jit(f)/iota")
    spread = hlo.add("broadcast", rows, dims=DIMS, dtype=S32, name="jit(f)/iota")
    columns = hlo.add("iota", dims=DIMS, dtype=S32, name="jit(f)/iota")
    equal = hlo.add("compare", spread, columns, dims=DIMS, dtype=PRED, name="jit(f)/eq")
    made = hlo.add("convert", equal, dims=DIMS, name="jit(f)/convert_element_type")

    assert classified(hlo.facts((made,))) is None
