"""Sharded arguments that are gathered in full."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._findings import gather
from tests.hlo import MIB, REPLICATED, Hlo, tiled

SHARDED: dict[str, Any] = {"spmd_parameters_shardings": [tiled(4, 1)]}


def gathered(opcode: str = "all-gather", dims: tuple[int, ...] = (2048, 512)) -> Hlo:
    """An argument of [512, 512] on each of 4 devices, and a temporary."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, path="w")
    hlo.add(opcode, w, dims=dims, name="jit(f)/dot_general")
    return hlo


@pytest.mark.parametrize(
    ("opcode", "dims", "is_found"),
    [
        ("all-gather", (2048, 512), True),
        ("fusion", (512, 2048), True),
        ("all-gather", (4, 512, 512), True),
        ("fusion", (4, 512, 512), False),
        ("all-gather", (512, 512), True),
    ],
    ids=["all-gather", "transposed", "reshaped", "another shape", "a part"],
)
def test_a_buffer_with_the_global_shape_is_a_full_copy(
    opcode: str, dims: tuple[int, ...], is_found: bool
) -> None:
    """Any instruction that makes the global shape, or an all-gather of the argument."""
    hlo = gathered(opcode, dims)
    finding = gather.find(hlo.facts((hlo.instructions[-1]["id"],), **SHARDED))

    assert (finding is not None) == is_found


def test_what_the_program_returns_replicated_is_left_to_the_other_finding() -> None:
    """The finding on replication speaks of outputs that every device holds."""
    hlo = gathered()
    outputs = (hlo.instructions[-1]["id"],)
    module: dict[str, Any] = {
        **SHARDED,
        "spmd_output_sharding": {"type": 2, "tuple_shardings": [REPLICATED]},
    }

    assert gather.find(hlo.facts(outputs=outputs, **module)) is None


@pytest.mark.parametrize(("columns", "is_found"), [(127, False), (128, True)])
def test_copies_of_an_eighth_of_the_minimum_count_together(columns: int, is_found: bool) -> None:
    """Eight copies, each an eighth of 2% of a peak of about 100 MiB, which 200 columns round up."""
    hlo = Hlo()
    w = hlo.parameter(128, columns, path="w")
    copies = [hlo.add("all-gather", w, dims=(512, columns)) for _ in range(8)]
    other = hlo.add("sort", dims=(97 * MIB // 4 + 64 * 1024,))
    facts = hlo.facts((*copies, other), **SHARDED)
    least = gather.LEAST_SHARE_OF_MINIMUM * facts.minimum_saving_bytes

    assert gather.LEAST_SHARE_OF_MINIMUM == 1 / 8
    assert (512 * columns * 4 >= least) == is_found
    assert (gather.find(facts) is not None) == is_found
