"""Sharded arrays that each device holds in full, and through which collective."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._findings import gather
from tests.hlo import MIB, REPLICATED, Hlo, tiled

SHARDED: dict[str, Any] = {"spmd_parameters_shardings": [tiled(4, 1)]}
NAME = "jit(f)/dot_general"


def gathered(opcode: str = "all-gather", dims: tuple[int, ...] = (2048, 512)) -> Hlo:
    """An argument of [512, 512] on each of 4 devices, and a temporary."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, path="w")
    hlo.add(opcode, w, dims=dims, name=NAME)
    return hlo


def last(hlo: Hlo) -> int:
    """The id of the last instruction."""
    number: int = hlo.instructions[-1]["id"]
    return number


@pytest.mark.parametrize(
    ("opcode", "dims", "title"),
    [
        ("all-gather", (2048, 512), "Keep w sharded: the compiler all-gathers the full array"),
        ("all-gather", (4, 512, 512), "Keep w sharded: the compiler all-gathers the full array"),
        ("all-gather", (1024, 512), "The compiler all-gathers a part of w"),
        ("custom-call", (2048, 512), ""),
        ("sort", (512, 512), ""),
    ],
    ids=["whole", "reshaped", "along one axis", "of the global shape only", "not gathered"],
)
def test_what_is_said_to_be_gathered_is_the_operand_of_an_all_gather(
    opcode: str, dims: tuple[int, ...], title: str
) -> None:
    """A buffer of the global shape alone is no proof."""
    hlo = gathered(opcode, dims)
    finding = gather.find(hlo.facts((last(hlo),), **SHARDED))

    assert (finding.title[: len(title)] if finding is not None else "") == title


@pytest.mark.parametrize(("dims", "weight"), [((2048, 512), 3.0), ((1024, 512), 0.8)])
def test_a_part_weighs_less_than_the_whole(dims: tuple[int, ...], weight: float) -> None:
    """Layers gather parts on purpose."""
    hlo = gathered("all-gather", dims)
    facts = hlo.facts((last(hlo),), **SHARDED)
    finding = gather.find(facts)

    assert (gather.PRIOR_WEIGHT, gather.PART_WEIGHT) == (3.0, 0.8)
    assert finding is not None
    assert gather.ADVICE.weigh is not None
    assert gather.ADVICE.weigh(facts, finding) == weight


@pytest.mark.parametrize(("copies", "is_found"), [(4, True), (5, False)])
def test_the_all_reduce_of_rows_is_looked_for_a_few_steps_up(copies: int, is_found: bool) -> None:
    """Between the rows and what adds them up are a cast and a copy."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    rows = hlo.add("gather", x, dims=(4096, 512), name="jit(f)/gather")
    made = hlo.add("all-reduce", rows, dims=(4096, 512), name="jit(f)/gather")
    for _ in range(copies):
        made = hlo.add("copy", made, dims=(4096, 512))

    assert gather.MOST_MOVES == 4
    assert (gather.find(hlo.facts((made,), **SHARDED)) is not None) == is_found


def test_a_copy_of_the_gathered_array_counts() -> None:
    """A transposed, cast or elementwise computed copy has the same bytes of other devices."""
    hlo = gathered()
    whole = last(hlo)
    copy = hlo.add("transpose", whole, dims=(512, 2048), name=NAME)
    tanh = hlo.add("tanh", copy, dims=(512, 2048), name=NAME)
    finding = gather.find(hlo.facts((whole, copy, tanh), **SHARDED))

    assert finding is not None
    assert finding.saves_bytes == 3 * 3 * MIB


def test_a_gathered_activation_is_not_called_by_the_name_of_an_argument() -> None:
    """A layer's result is gathered along one axis; the argument that it is computed from is not."""
    hlo = Hlo()
    x, w = hlo.parameter(512, 512, path="x"), hlo.parameter(512, 512, path="w")
    h = hlo.add("dot", x, w, dims=(512, 512), name=NAME)
    whole = hlo.add("all-gather", h, dims=(2048, 512), name=NAME)
    module: dict[str, Any] = {"spmd_parameters_shardings": [tiled(4, 1), REPLICATED]}
    finding = gather.find(hlo.facts((h, whole), **module))

    assert finding is not None
    assert finding.title == "The compiler all-gathers a computed value"
    assert finding.saves_bytes == 3 * MIB


@pytest.mark.parametrize(("collective", "is_found"), [("all-reduce", True), ("negate", False)])
def test_rows_that_an_index_selects_are_added_up_over_the_devices(
    collective: str, is_found: bool
) -> None:
    """Mixture-of-experts dispatch, and a permutation: no all-gather, but every row is there."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    index = hlo.add("sort", dims=(4096,), name="jit(f)/sort")
    inside = hlo.inner()
    rows, which = inside.parameter(512, 512), inside.parameter(4096)
    inside.add("gather", rows, which, dims=(4096, 512), name="jit(f)/gather")
    taken = hlo.fusion(x, index, dims=(4096, 512), inside=inside, name="jit(f)/gather")
    masked = hlo.add("select", taken, dims=(4096, 512), name="jit(f)/gather")
    summed = hlo.add(collective, masked, dims=(4096, 512), name="jit(f)/gather")
    finding = gather.find(hlo.facts((masked, summed), **SHARDED))

    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.title == (
            "Every device holds the rows of x for all devices: an index selects them along the "
            "sharded axis"
        )
        assert finding.saves_bytes == 2 * 8 * MIB * 3 // 4


def test_a_layer_that_a_loop_slices_is_a_part_of_the_argument() -> None:
    """FSDP gathers one layer at a time on purpose; the stack stays sharded."""
    hlo = Hlo()
    layers = hlo.parameter(8, 128, 512, path="layers")
    body, condition = hlo.inner(), hlo.inner()
    carried = body.add("parameter", shape={"element_type": 13})
    stack = body.add("get-tuple-element", carried, dims=(8, 128, 512), tuple_index=0)
    layer = body.add("dynamic-slice", stack, dims=(1, 128, 512))
    body.add("all-gather", layer, dims=(1, 512, 512), name=NAME)
    whole = last_of(body)
    body.add("tuple", stack)
    condition.parameter(1)
    start = hlo.add("tuple", layers)
    hlo.add("while", start, shape={"element_type": 13}, called_computation_ids=[body.id])
    module: dict[str, Any] = {"spmd_parameters_shardings": [tiled(1, 4, 1)]}
    finding = gather.find(hlo.facts((whole,), **module))

    assert finding is not None
    assert finding.title == "The compiler all-gathers a part of layers"


def last_of(computation: Any) -> int:
    """The id of the last instruction of a computation."""
    number: int = computation.instructions[-1]["id"]
    return number


def test_what_is_gathered_for_a_callback_is_left_to_the_finding_on_callbacks() -> None:
    """Without the callback nothing is gathered."""
    hlo = gathered()
    whole = last(hlo)
    hlo.add("custom-call", whole, name="jit(f)/debug_callback", custom_call_target="callback")

    assert gather.find(hlo.facts((whole,), **SHARDED)) is None


def test_what_the_program_returns_replicated_is_left_to_the_other_finding() -> None:
    """The finding on replication speaks of outputs that every device holds."""
    hlo = gathered()
    module: dict[str, Any] = {
        **SHARDED,
        "spmd_output_sharding": {"type": 2, "tuple_shardings": [REPLICATED]},
    }

    assert gather.find(hlo.facts(outputs=(last(hlo),), **module)) is None


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


@pytest.mark.parametrize(
    ("is_result", "remedy"),
    [
        (True, "The program returns it with fewer shards than it is computed with."),
        (False, "Use it as it is sharded: in a tensor-parallel layer"),
    ],
    ids=["a result", "an activation"],
)
def test_a_result_that_is_gathered_is_returned_as_it_is_sharded(
    is_result: bool, remedy: str
) -> None:
    """Its sharding is the cause, and no layer that reads it."""
    hlo = Hlo()
    value = hlo.add("sort", hlo.parameter(512, 512, path="w"), dims=(512, 512))
    made = hlo.add("all-gather", value, dims=(1024, 512), name=NAME)
    module = {**SHARDED, "outputs": (made,)} if is_result else SHARDED
    finding = gather.find(hlo.facts(() if is_result else (made,), **module))

    assert finding is not None
    assert finding.title == "The compiler all-gathers a computed value"
    assert finding.remedy.startswith(remedy)
