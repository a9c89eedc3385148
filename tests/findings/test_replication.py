"""What every device of a mesh holds in full."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import replication
from hbmwatch._findings.replication import (
    ReplicatedBatch,
    ReplicatedLeaf,
    replicated_batch,
    replicated_leaves,
)
from hbmwatch._jax.lowered import CallInfo
from tests.hlo import MIB, REPLICATED, Hlo, tiled

MESH = CallInfo(mesh={"data": 4}, device_count=4)
KIB = 1024


def weights(*kib: int) -> ProgramFacts:
    """Replicated arguments of these sizes in KiB, on four devices."""
    hlo = Hlo()
    for number, size in enumerate(kib):
        hlo.parameter(256 * size, path=f"w{number}")
    hlo.add("negate", dims=(1,))
    shardings = [REPLICATED] * len(kib)
    return hlo.facts(call=MESH, spmd_parameters_shardings=shardings)


def test_a_replicated_argument_can_be_sharded_over_the_axis() -> None:
    """Three quarters of it are free on each of four devices."""
    facts = weights(1024)
    (leaf,) = replicated_leaves(facts)
    finding = replication.find(facts)

    how = "dimension 0 (262144) can be sharded over 'data'"
    assert leaf._replace(rows=()) == ReplicatedLeaf("w0", MIB, 3 * MIB // 4, how)
    assert len(leaf.rows) == 1
    assert finding is not None
    assert finding.title == "Shard w0: fully replicated on all 4 devices"


@pytest.mark.parametrize(("kib", "count"), [(18, 1), (19, 2)])
def test_a_leaf_below_a_quarter_of_its_part_of_the_minimum_is_left_out(
    kib: int, count: int
) -> None:
    """The minimum of 8 MiB at the peak is 2%, 164 KiB: two leaves have 82 KiB each, at 20.5."""
    facts = weights(8 * KIB - 1000, kib)
    least = replication.LEAST_SHARE_OF_MINIMUM * facts.minimum_saving_bytes / 2

    assert replication.LEAST_SHARE_OF_MINIMUM == 1 / 4
    assert (kib * KIB > least) == (count == 2)
    assert len(replicated_leaves(facts)) == count


def test_a_result_is_sharded_by_out_shardings_alone() -> None:
    """Nothing of it exists before the call."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(1024, 512))
    facts = hlo.facts(outputs=(made,), call=MESH, spmd_output_sharding=REPLICATED)
    finding = replication.find(facts)

    assert finding is not None
    assert finding.remedy == "Give them a NamedSharding over the mesh (out_shardings)."
    assert finding.change == ""  # verify shards arguments


def batch(axes: dict[str, int], sharded: bool = False) -> ProgramFacts:
    """A replicated batch of 1024 examples, and what is computed of it."""
    hlo = Hlo()
    x = hlo.parameter(1024, 64, path="x")
    hlo.parameter(512, 64, path="w")
    made = hlo.add("sort", x, dims=(1024, 512))
    call = CallInfo(mesh=axes, device_count=4)
    shardings = [REPLICATED, tiled(4, 1) if sharded else REPLICATED]
    return hlo.facts((made,), call=call, spmd_parameters_shardings=shardings)


@pytest.mark.parametrize(
    ("axes", "sharded", "axis"),
    [
        ({"data": 4}, False, "data"),
        ({"data": 3}, False, None),
        ({"tensor": 4}, False, None),
        ({"tensor": 4, "data": 2}, False, "data"),
        ({}, False, ""),
        ({}, True, None),
    ],
    ids=["data", "does not divide", "tensor parallel", "both", "nameless", "nameless and used"],
)
def test_a_replicated_batch_is_a_mistake_along_a_data_axis(
    axes: dict[str, int], sharded: bool, axis: str | None
) -> None:
    """Every device of a tensor parallel axis has the whole batch on purpose."""
    scaling = 1024 * 64 * 4 + 1024 * 512 * 4
    parts = {"data": axes.get("data", 1), "": 4}
    expected = None
    if axis is not None:
        expected = ReplicatedBatch(axis, scaling - scaling // parts[axis])

    assert replicated_batch(batch(axes, sharded)) == expected


@pytest.mark.parametrize(
    ("opcode", "rows", "does", "will_not_help"),
    [
        (
            "sort",
            1024,
            "computes",
            "jax.checkpoint: every device would still compute all of their rows",
        ),
        ("sort", 256, "holds", "more devices, while each of them holds the full array"),
        ("copy", 1024, "holds", "more devices, while each of them holds the full array"),
    ],
    ids=["all rows", "a part of the rows", "a copy"],
)
def test_a_device_computes_all_rows_only_where_a_buffer_has_them(
    opcode: str, rows: int, does: str, will_not_help: str
) -> None:
    """The arguments alone are whole where the program shards what it computes of them."""
    hlo = Hlo()
    x = hlo.parameter(1024, 8192, path="x")
    hlo.parameter(1024, 8, path="y")
    made = hlo.add(opcode, x, dims=(rows, 8192))
    hlo.add("reduce", made, dims=(1,))
    shardings = [REPLICATED, REPLICATED]
    finding = replication.find(hlo.facts((made,), call=MESH, spmd_parameters_shardings=shardings))

    assert finding is not None
    assert finding.title == (
        f"Shard x, y: they are replicated, so every device {does} all of their rows"
    )
    assert finding.will_not_help == will_not_help


def test_the_largest_leaves_are_named_first() -> None:
    """They are what has to be sharded; the others are counted."""
    finding = replication.find(weights(1024, 1025, 8192, 1024, 4096))

    assert finding is not None
    assert finding.title == "Shard w2, w4, w1 and 2 more: fully replicated on all 4 devices"


@pytest.mark.parametrize(
    ("weight", "parts", "how"),
    [
        ((512, 8, 128), (1, 4, 1), "dimension 2 (8) can be sharded over 'data', as an argument is"),
        ((512, 1024), (1, 4), "dimension 2 (8) can be sharded over 'data', as an argument is"),
        ((512, 1024), (4, 1), "dimension 1 (4096) can be sharded over 'data'"),
        ((512, 8, 64), (1, 4, 1), "dimension 1 (4096) can be sharded over 'data'"),
    ],
    ids=["heads", "heads and features in one", "another dimension", "other features"],
)
def test_a_cache_is_sharded_by_heads_where_its_weights_are(
    weight: tuple[int, ...], parts: tuple[int, ...], how: str
) -> None:
    """Else along the largest dimension, the sequence."""
    hlo = Hlo()
    hlo.parameter(*(size // n for size, n in zip(weight, parts, strict=True)), path="w['k']")
    hlo.parameter(4, 4096, 8, 128, path="cache['k']")
    hlo.add("negate", dims=(1,))
    shardings = [tiled(*parts), REPLICATED]
    (leaf,) = replicated_leaves(hlo.facts(call=MESH, spmd_parameters_shardings=shardings))

    assert leaf.how == how


@pytest.mark.parametrize(
    ("sharded", "dims", "how"),
    [
        (0, (128, 1024, 512), "dimension 0 (128) can be sharded over 'data', as an argument is"),
        (None, (128, 1024, 512), "dimension 1 (1024) can be sharded over 'data'"),
        (
            None,
            (1025, 1024),
            "dimension 1 (1024) can be sharded over 'data'. 4 does not divide dimension 0 (1025): "
            "a sharding constraint along it leaves a result replicated, unless it is padded to a "
            "multiple of 4",
        ),
    ],
    ids=["as an argument", "the largest", "one that is not divisible"],
)
def test_the_dimension_to_shard(sharded: int | None, dims: tuple[int, ...], how: str) -> None:
    """As an argument is sharded, else the largest that the axis divides."""
    hlo = Hlo()
    parts = [4 if i == sharded else 1 for i in range(len(dims))]
    hlo.parameter(*(size // n for size, n in zip(dims, parts, strict=True)), path="w")
    made = hlo.add("sort", dims=dims)
    (leaf,) = replicated_leaves(
        hlo.facts(
            outputs=(made,),
            call=MESH,
            spmd_parameters_shardings=[tiled(*parts) if sharded is not None else tiled(4, 1)],
            spmd_output_sharding=REPLICATED,
        )
    )

    assert leaf.how == how
