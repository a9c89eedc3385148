"""First dimensions of arguments that are no batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from tests.findings.cases import explain
from tests.hlo import S32, Hlo


def over_layers(rows: int, starts_with: str = "parameter") -> ProgramFacts:
    """A loop that reads one row of "xs" after the other, or of a value, beside "ys" like it."""
    hlo = Hlo()
    w = hlo.parameter(24, 64, 64, path="xs")
    hlo.parameter(24, 64, path="ys")
    w = w if starts_with == "parameter" else hlo.add(starts_with, w, dims=(24, 64, 64))
    begin = hlo.add("tuple", w)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=(24, 64, 64), tuple_index=0)
    body.add("dynamic-slice", whole, dims=(rows, 64, 64))
    body.add("tuple", whole)
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    made = hlo.add("sort", dims=(24, 512, 512))
    return hlo.facts((made,))


@pytest.mark.parametrize(
    ("rows", "starts_with", "length"),
    [(1, "parameter", 0), (1, "copy", 0), (4, "parameter", 24), (1, "sort", 24)],
    ids=["layers", "a copy of them", "several rows at once", "computed"],
)
def test_what_a_loop_reads_row_by_row_is_no_batch(rows: int, starts_with: str, length: int) -> None:
    """Nor is another argument with as many rows."""
    assert over_layers(rows, starts_with).batch.length == length


@pytest.mark.parametrize(
    ("combines", "name", "rows", "length"),
    [
        ("add", "jit(f)/jvp()/scatter-add", 4096, 0),
        ("add", "jit(f)/jvp()/while/body/scatter-add", 512, 0),
        ("add", "jit(f)/jvp()/scatter-add", 500, 4096),
        ("add", "jit(f)/transpose(jvp())/scatter-add", 4096, 4096),
        ("parameter", "jit(f)/scatter", 4096, 4096),
    ],
    ids=["edges", "a block of edges", "other rows", "the gradient of a lookup", "set"],
)
def test_the_edges_of_a_graph_are_no_batch(
    combines: str, name: str, rows: int, length: int
) -> None:
    """The forward pass adds their rows to those of nodes, by an index."""
    hlo = Hlo()
    index = hlo.parameter(4096, dtype=S32, path="receivers")
    nodes = hlo.parameter(1024, 8, path="h")
    values = hlo.add("sort", index, dims=(4096, 512), name="jit(f)/sort")
    part = hlo.add("slice", index, dims=(rows,), dtype=S32)
    inner = hlo.inner()
    inner.add(combines, dims=())
    hlo.add("scatter", nodes, part, values, dims=(1024, 8), name=name, calls=inner)
    facts = hlo.facts((values,))

    assert facts.batch.length == length


@pytest.mark.parametrize(
    ("dims", "length"), [((512, 4096), 0), ((4096, 512), 4096), ((8192, 512), 4096)]
)
def test_a_vector_alone_is_a_batch_only_where_rows_follow_from_it(
    dims: tuple[int, int], length: int
) -> None:
    """The pixels of one frame are the last dimension of a replay buffer."""
    hlo = Hlo()
    x = hlo.parameter(4096, path="frame")
    facts = hlo.facts((hlo.add("sort", x, dims=dims),))

    assert facts.batch.length == length


def test_layers_of_a_real_scan_are_no_batch() -> None:
    """As the compiler makes it, with slices in fusions."""

    def forward(weights: jax.Array, bias: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ each[0] + each[1]), None

        return jax.lax.scan(layer, x, (weights, bias))[0].sum()

    arrays = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((24, 64, 64), (24, 64), (300, 64))]
    program, summary, message, call, _ = explain(jax.jit(forward).lower(*arrays))
    batch = ProgramFacts(program, summary, message, call).batch

    assert (batch.length, [a.path for a in batch.arguments]) == (300, ["x"])
