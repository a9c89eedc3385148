"""No finding names a change that `verify` cannot try."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._findings.changes import can_try
from hbmwatch._jax.lowered import CallInfo
from tests.hlo import BF16, F32, REPLICATED, Hlo, tiled


@pytest.mark.parametrize(
    ("dtype", "dims", "possible"),
    [(F32, (8,), True), (BF16, (8,), False), (F32, (), False)],
    ids=["float32", "bfloat16", "a number"],
)
def test_bfloat16_needs_a_wider_array(dtype: int, dims: tuple[int, ...], possible: bool) -> None:
    """A program whose arguments are narrow can compute in a wide type, too."""
    hlo = Hlo()
    x = hlo.parameter(*dims, dtype=dtype)
    hlo.add("negate", x, dims=dims, dtype=dtype)

    assert can_try(hlo.facts(), "bfloat16") == possible


@pytest.mark.parametrize(
    ("dims", "sharding", "possible"),
    [
        ((50258, 64), REPLICATED, True),
        ((50258, 63), REPLICATED, False),
        ((50256, 63), tiled(4, 1), False),
    ],
    ids=["a dimension", "no dimension", "sharded already"],
)
def test_sharding_needs_a_dimension_that_the_mesh_divides(
    dims: tuple[int, ...], sharding: dict[str, Any], possible: bool
) -> None:
    """Four devices do not divide a vocabulary of 50258."""
    hlo = Hlo()
    x = hlo.parameter(*dims)
    hlo.add("negate", x, dims=dims)
    mesh = CallInfo(mesh={"data": 4}, device_count=4)

    assert can_try(hlo.facts(call=mesh, spmd_parameters_shardings=[sharding]), "sharding") == (
        possible
    )


@pytest.mark.parametrize("change", ["", "donation", "half-batch"])
def test_other_changes_are_named_by_findings_that_found_their_place(change: str) -> None:
    """Donation has its arguments, and the batch its length."""
    hlo = Hlo()
    hlo.add("negate", hlo.parameter(8), dims=(8,))

    assert can_try(hlo.facts(), change)
