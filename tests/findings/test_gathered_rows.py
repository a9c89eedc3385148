"""An index that selects more than there is: matrices for tokens, rows for edges."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hbmwatch._findings import gathered_rows
from tests.findings.small import classified
from tests.hlo import S32, Hlo


@pytest.mark.parametrize(
    ("table", "count", "slug"),
    [
        ((8, 64, 64), 16, "gathered-rows"),
        ((8, 64, 64), 15, None),
        ((8, 4096), 1024, None),
        ((8, 1, 4096), 1024, None),
    ],
    ids=["twice", "less than twice", "vectors", "vectors in matrices"],
)
def test_an_index_that_copies_matrices(table: Sequence[int], count: int, slug: str | None) -> None:
    """An embedding selects vectors, and a part of a data set is not larger than it."""
    hlo = Hlo()
    weights = hlo.parameter(*table, path="weights")
    index = hlo.parameter(count, dtype=S32, path="index")
    dims = (count, *table[1:])
    made = hlo.add("gather", weights, index, dims=dims, name="jit(f)/gather")
    hlo.add("custom-call", made, dims=(count,), name="jit(f)/dot_general")

    assert (gathered_rows.LEAST_GROWTH, gathered_rows.LEAST_RANK) == (2, 3)
    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("edges", "features", "context", "slug"),
    [
        (65536, 64, "jit(f)/", "gathered-rows"),
        (32768, 64, "jit(f)/", None),
        (65536, 1, "jit(f)/", None),
        (65536, 64, "jit(f)/transpose(jvp())/", None),
    ],
    ids=["all edges", "other rows", "a histogram", "the gradient of a lookup"],
)
def test_rows_that_are_selected_and_added_by_index(
    edges: int, features: int, context: str, slug: str | None
) -> None:
    """As segment_sum adds the messages of a graph's edges to its nodes."""
    hlo, rows = Hlo(), gathered_rows.LEAST_EDGES
    nodes = hlo.parameter(128, 64, path="nodes")
    hlo.parameter(rows, dtype=S32, path="index")
    index = hlo.parameter(edges, dtype=S32, path="edges")
    hlo.add("gather", nodes, index, dims=(edges, 64), name="jit(f)/gather")
    made = hlo.add("sort", dims=(rows, 64), name="jit(f)/sort")
    added = hlo.add("slice", made, dims=(edges, features))
    total = hlo.inner()
    total.add("add", total.parameter(), total.parameter())
    hlo.add(
        "scatter", nodes, index, added, dims=(128, 64), name=f"{context}scatter-add", calls=total
    )

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(("edges", "slug"), [(65536, "gathered-rows"), (65535, None)])
def test_a_batch_of_labels_is_no_edges(edges: int, slug: str | None) -> None:
    """Below 65536 rows the whole program is not read for it."""
    hlo = Hlo()
    nodes = hlo.parameter(128, 8, path="nodes")
    index = hlo.parameter(edges, dtype=S32, path="edges")
    made = hlo.add("gather", nodes, index, dims=(edges, 8), name="jit(f)/gather")
    total = hlo.inner()
    total.add("add", total.parameter(), total.parameter())
    sums = hlo.parameter(128, 8, path="sums")
    hlo.add("scatter", sums, index, made, dims=(128, 8), name="jit(f)/scatter-add", calls=total)

    assert gathered_rows.LEAST_EDGES == 65536
    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("rows", "dims", "name", "slug"),
    [
        (2048, (512, 64), "jit(f)/reduce_sum", "gathered-rows"),
        (2047, (512, 64), "jit(f)/reduce_sum", None),
        (2048, (64,), "jit(f)/reduce_sum", None),
        (2048, (2048,), "jit(f)/reduce_sum", None),
        (2048, (512, 64), "jit(f)/transpose(jvp())/reduce_sum", None),
    ],
    ids=["neighbors", "less than twice", "the mean of all rows", "norms", "a gradient"],
)
def test_rows_that_are_gathered_and_reduced(
    rows: int, dims: Sequence[int], name: str, slug: str | None
) -> None:
    """As the mean over the neighbors of each node."""
    hlo = Hlo()
    nodes = hlo.parameter(1024, 64, path="nodes")
    index = hlo.parameter(rows, dtype=S32, path="neighbors")
    made = hlo.add("gather", nodes, index, dims=(rows, 64), name="jit(f)/gather")
    apart = hlo.add("reshape", made, dims=(rows, 1, 64))
    hlo.add("reduce", apart, dims=dims, name=name)

    assert classified(hlo.facts((made,))) == slug
