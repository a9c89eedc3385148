"""All pairs: of two arrays that are broadcast, or of the rows of two arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import classify, pairwise
from hbmwatch._findings.rank import find_findings
from tests.findings.cases import TINY_MIB, explain, slugs
from tests.findings.products import SOFTMAX, product
from tests.findings.small import classified, found
from tests.hlo import F32, MIB, PRED, S32, Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(("states", "slug"), [(31, None), (32, "pairwise")])
def test_pairs_have_at_least_32_others_each(states: int, slug: str | None) -> None:
    """Fewer are a dimension of features or states."""
    hlo = Hlo()
    dims = (states, 32768)
    few = hlo.add("broadcast", hlo.parameter(states), dims=dims)
    many = hlo.add("broadcast", hlo.parameter(32768), dims=dims)
    made = hlo.add("subtract", few, many, dims=dims, name="jit(f)/sub")

    assert pairwise.LEAST_COPIES == 32
    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(("features", "slug"), [(64, "pairwise"), (65, None)])
def test_a_product_of_rows_is_pairs_from_16_times_its_factors_on(
    features: int, slug: str | None
) -> None:
    """Below, it may be a layer whose weights are transposed."""
    rows = (1024, features)

    assert pairwise.LEAST_GROWTH == 16
    assert classified(product(rows, rows, (1024, 1024), user="jit(f)/sqrt")) == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [("jit(f)/vmap(vmap())/dot_general", "pairwise"), ("jit(f)/dot_general", "logits")],
)
def test_a_softmax_over_pairs_under_two_vmaps_makes_no_tokens_of_them(name: str, slug: str) -> None:
    """As in optimal transport; without the vmaps it is a loss."""
    facts = product((1024, 8), (2048, 8), (1024, 2048), name, SOFTMAX)

    assert classified(facts) == slug


def test_weights_are_no_rows() -> None:
    """The weights of a layer have the features first."""
    facts = product((1024, 8), (8, 2048), (1024, 2048), user="jit(f)/sqrt")

    assert classified(facts) is None


@pytest.mark.tpu
@pytest.mark.parametrize(("states", "is_pairwise"), [(16, False), (512, True)])
def test_a_few_features_to_each_are_no_pairs(states: int, is_pairwise: bool) -> None:
    """Rows that meet only 16 states are an expansion, not all pairs of two long dimensions."""

    def expand(x: Any, states: Any) -> Any:
        return jnp.sort(jnp.exp(x[:, :, None] * states), 0)

    lowered = on_one(expand, array((1 << 22) // states, 512), array(512, states))
    assert ("pairwise" in slugs(explain(lowered, TINY_MIB).findings)) == is_pairwise


@pytest.mark.parametrize(
    ("rows", "beside", "slug"),
    [(512 * 32, "p", "pairwise"), (512 * 31, "p", None), (512 * 32, "q", None)],
    ids=["each row meets 32", "each row meets 31", "an embedding"],
)
def test_pairs_that_an_index_selects(rows: int, beside: str, slug: str | None) -> None:
    """p[:, None] - p[idx]: what reads the gathered rows reads the array too."""
    hlo = Hlo()
    tables = {path: hlo.parameter(512, 64, path=path) for path in ("p", "q")}
    index = hlo.parameter(rows, path="index")
    inside = hlo.inner()
    table, which = inside.parameter(512, 64), inside.parameter(rows)
    inside.add("gather", table, which, dims=(rows, 64), name="jit(f)/gather")
    gathered = hlo.fusion(tables["p"], index, dims=(rows, 64), inside=inside, name="jit(f)/gather")
    hlo.add("custom-call", gathered, tables[beside], dims=(rows,), name="jit(f)/reduce_sum")

    facts = hlo.facts((gathered,), sizes={gathered: 8 * rows * 64})

    assert pairwise.GATHERED_WEIGHT == 2.1
    assert classified(facts) == slug
    assert found(facts) == ([slug, "padding"] if slug is not None else ["padding"])


@pytest.mark.parametrize(("trains", "slug"), [(True, None), (False, "pairwise")])
def test_the_gradient_of_a_layer_is_no_pairs(trains: bool, slug: str | None) -> None:
    """It is an outer product, too, in the shape of the layer's weights."""
    hlo = Hlo()
    x, g = hlo.parameter(512, path="x"), hlo.parameter(1024, path="g")
    hlo.parameter(1024, 512, path="w")
    rows = hlo.add("broadcast", x, dims=(512, 1024))
    columns = hlo.add("broadcast", g, dims=(512, 1024))
    name = "jit(f)/transpose(jvp())/mul" if trains else "jit(f)/mul"
    made = hlo.add("multiply", rows, columns, dims=(512, 1024), name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("dims", "square", "reader", "expands"),
    [
        ((1024, 512, 4), "multiply", "reduce", True),
        ((1024, 2048), "multiply", "reduce", False),
        ((1024, 512, 4), "abs", "reduce", False),
        ((1024, 512, 4), "multiply", "sort", False),
    ],
    ids=["sum over features", "of one feature", "absolute differences", "sorted"],
)
def test_the_square_is_expanded_where_squared_differences_are_summed(
    dims: tuple[int, ...], square: str, reader: str, expands: bool
) -> None:
    """A buffer with one entry a pair is as large with the square expanded."""
    hlo = Hlo()
    rows = hlo.add("broadcast", hlo.parameter(dims[0], *dims[2:]), dims=dims)
    others = hlo.add("broadcast", hlo.parameter(*dims[1:]), dims=dims)
    difference = hlo.add("subtract", rows, others, dims=dims)
    made = hlo.add(square, difference, difference, dims=dims, name=f"jit(f)/{square}")
    hlo.add(reader, made, dims=dims[:2])
    (finding,) = classify.find(hlo.facts((made,)))

    assert finding.slug == "pairwise"
    assert ("expand the square" in finding.remedy) == expands


@pytest.mark.parametrize(("dtype", "slug"), [(F32, "pairwise"), (PRED, None)])
def test_masks_of_rows_and_columns_are_no_pairs(dtype: int, slug: str | None) -> None:
    """Linear algebra of jax.numpy selects a part of a matrix by them."""
    hlo, dims = Hlo(), (512, 1024)
    rows, columns = (
        hlo.add("broadcast", hlo.parameter(size, dtype=dtype), dims=dims, dtype=dtype)
        for size in dims
    )
    made = hlo.add("select", rows, columns, dims=dims, name="jit(f)/select_n")

    assert classified(hlo.facts((made,))) == slug


def test_a_gradient_for_each_example_is_no_pairs() -> None:
    """It is an outer product too, of the example's activations and cotangents."""
    hlo = Hlo()
    dims = (1024, 512)
    rows = hlo.add("broadcast", hlo.parameter(1024), dims=dims)
    columns = hlo.add("broadcast", hlo.parameter(512), dims=dims)
    name = "jit(f)/vmap(transpose(jvp()))/mul"
    outer = hlo.add("multiply", rows, columns, dims=dims, name=name)
    made = hlo.add("reshape", outer, dims=(1024 * 512,), name="jit(f)/vmap()/concatenate")
    hlo.add("negate", made, dims=dims, name="jit(f)/vmap(jvp())/neg")

    assert classified(hlo.facts((made,))) == "samples"


@pytest.mark.parametrize(
    ("features", "itself", "found"),
    [(64, True, ["A matrix is multiplied"]), (65, True, []), (64, False, ["An all-pairs buffer"])],
    ids=["16 times as large", "15 times", "of two matrices"],
)
def test_a_matrix_by_its_own_transpose(features: int, itself: bool, found: list[str]) -> None:
    """Features first, so that no rows are multiplied; the factors may be computed."""
    hlo = Hlo()
    first, second = (hlo.parameter(features, 1024, path=path) for path in "xy")
    a, b = (hlo.add("sort", x, dims=(features, 1024)) for x in (first, second))
    left = hlo.add("transpose", a, dims=(1024, features))
    made = hlo.add("dot", left, a if itself else b, dims=(1024, 1024), name="jit(f)/dot_general")
    findings = classify.find(hlo.facts((made,)))

    assert [f.slug for f in findings] == ["pairwise" for _ in found]
    assert all(f.title.startswith(title) for f, title in zip(findings, found))


@pytest.mark.parametrize("applied", ["", "sine"], ids=["itself", "a function of it"])
def test_a_function_of_a_gram_matrix_is_not_linear(applied: str) -> None:
    """x.T @ (x @ v) is the product with the Gram matrix itself alone."""
    hlo = Hlo()
    x = hlo.add("sort", hlo.parameter(1024, 16, path="x"), dims=(1024, 16))
    made = hlo.add("dot", x, x, dims=(1024, 1024), name="jit(f)/dot_general")
    made = hlo.add(applied, made, dims=(1024, 1024), name="jit(f)/sin") if applied else made
    (finding,) = classify.find(hlo.facts((made,)))

    assert finding.title.startswith("A matrix is multiplied by its own transpose in full")
    assert ("x.T @ (x @ v)" in finding.remedy) == (not applied)


def test_the_index_of_a_sort_is_of_the_buffer_that_it_orders() -> None:
    """They are read by one sort, and as large as each other."""
    hlo = Hlo()
    dims = (1024, 1024)
    rows = hlo.add("broadcast", hlo.parameter(1024), dims=dims)
    others = hlo.add("broadcast", hlo.parameter(1024), dims=dims)
    made = hlo.add("subtract", rows, others, dims=dims, name="jit(f)/sub")
    iota = hlo.add("iota", dims=dims, dtype=S32)
    hlo.add("sort", made, iota, dims=dims, name="jit(f)/sort")
    (finding,) = find_findings(hlo.facts((made, iota)))

    assert finding.slug == "pairwise"
    assert len(finding.buffers) == 2


@pytest.mark.parametrize(
    ("dims", "slug"), [((4096, 64, 8), "pairwise"), ((4096, 64), None)], ids=["rows", "their sum"]
)
def test_a_sum_of_gathered_rows_has_no_pairs(dims: tuple[int, ...], slug: str | None) -> None:
    """Only the gathered rows are."""
    hlo = Hlo()
    x = hlo.parameter(4096, 8, path="x")
    index = hlo.parameter(4096, 64, dtype=S32, path="index")
    inside = hlo.inner()
    table = inside.add("parameter", dims=(4096, 8))
    rows = inside.add("parameter", dims=(4096, 64), dtype=S32)
    whole = inside.add("gather", table, rows, dims=(4096, 64, 8), name="jit(f)/gather")
    if len(dims) == 2:
        inside.add("reduce", whole, dims=dims, name="jit(f)/reduce_sum")
    made = hlo.fusion(x, index, dims=dims, inside=inside, name="jit(f)/gather")
    hlo.add("subtract", x, made, dims=dims, name="jit(f)/sub")

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("weights", "user", "slug"),
    [
        (False, SOFTMAX, "pairwise"),
        (True, SOFTMAX, "logits"),
        (False, "jit(f)/mul", "pairwise"),
        (True, "jit(f)/mul", None),
    ],
    ids=["two values", "a layer's weights", "no softmax", "a layer"],
)
def test_the_softmax_of_a_contrastive_loss_has_all_pairs(
    weights: bool, user: str, slug: str | None
) -> None:
    """Such as the similarity of each image and each text: nothing is multiplied by it."""
    hlo = Hlo()
    a, b = hlo.parameter(1024, 8, path="a"), hlo.parameter(8, 1024, path="b")
    b = b if weights else hlo.add("sort", b, dims=(8, 1024))
    made = hlo.add(
        "dot", hlo.add("sort", a, dims=(1024, 8)), b, dims=(1024, 1024), name="jit(f)/dot_general"
    )
    hlo.add("subtract", made, made, dims=(1024, 1024), name=user)

    assert classified(hlo.facts((made,))) == slug


def test_blocks_do_not_make_a_result_smaller() -> None:
    """An outer product that is returned has to be returned in parts."""
    hlo = Hlo()
    a, b = hlo.parameter(512, path="a"), hlo.parameter(512, path="b")
    rows, columns = (hlo.add("broadcast", x, dims=(512, 512)) for x in (a, b))
    made = hlo.add("multiply", rows, columns, dims=(512, 512), name="jit(f)/mul")
    (result,) = classify.find(hlo.facts(outputs=(made,)))
    (temporary,) = classify.find(hlo.facts((made,)))

    assert result.remedy.startswith("Blocks alone do not make a result of the program smaller.")
    assert temporary.remedy.startswith("Do not compute all pairs at once")
    assert result.saves_bytes == temporary.saves_bytes == MIB


@pytest.mark.parametrize(
    ("name", "weights", "slug"),
    [
        ("jit(f)/dot_general", (64, 64), "pairwise"),
        ("jit(f)/transpose(jvp())/dot_general", (64, 64), None),
        ("jit(f)/dot_general", (1024, 512), None),
    ],
    ids=["values", "a gradient", "in the shape of weights"],
)
def test_a_product_of_two_values_has_all_pairs_of_their_rows(
    name: str, weights: tuple[int, int], slug: str | None
) -> None:
    """The gradient of a layer is such a product of few rows, too."""
    hlo = Hlo()
    hlo.parameter(*weights, path="w")
    x, y = hlo.parameter(512, 8, path="x"), hlo.parameter(1024, 8, path="y")
    rows = hlo.add("sort", x, dims=(512, 8)), hlo.add("sort", y, dims=(1024, 8))
    made = hlo.add("dot", *rows, dims=(512, 1024), name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True], ids=["all at once", "in blocks"])
def test_scores_that_no_softmax_reads_are_pairs_with_their_gradient(blocks: bool) -> None:
    """Such as those of an indexer: no attention, and no logits."""

    def score(params: Any, x: Any, queries: Any) -> Any:
        q = (queries @ params["q"]).reshape(2, -1, 16, 64)
        scores = jax.nn.relu(jnp.einsum("bqhd,bkd->bhqk", q, x @ params["k"]))
        return (jnp.einsum("bhqk,bqh->bqk", scores, queries @ params["w"]) ** 2).mean()

    def loss(params: Any, x: Any) -> Any:
        if not blocks:
            return score(params, x, x)
        some = jax.checkpoint(lambda queries: score(params, x, queries))
        return jax.lax.map(some, x.reshape(2, 32, -1, 512).swapaxes(0, 1)).mean()

    params = {"q": array(512, 1024), "k": array(512, 64), "w": array(512, 16)}
    findings = explain(on_one(jax.grad(loss), params, array(2, 2048, 512)), 100).findings
    pairs = [f for f in findings if f.slug in ("pairwise", "logits", "attention-scores")]

    assert [f.slug for f in pairs] == ([] if blocks else ["pairwise"])
    assert all(f is findings[0] and (f.saves_bytes or 0) >= 512 * MIB for f in pairs)


@pytest.mark.parametrize(
    ("opcode", "slug"), [("multiply", "pairwise"), ("sort", None)], ids=["scaled", "computed"]
)
def test_rows_times_a_number_are_rows(opcode: str, slug: str | None) -> None:
    """The product in the squared distances of two sets of points: -2 x @ y.T."""
    hlo = Hlo()
    x, y = hlo.parameter(2048, 8, path="x"), hlo.parameter(1024, 8, path="y")
    two = hlo.add("broadcast", hlo.add("constant"), dims=(2048, 8))
    scaled = hlo.add(opcode, x, two, dims=(2048, 8))
    made = hlo.add("dot", scaled, y, dims=(2048, 1024), name="jit(f)/dot_general")

    assert classified(hlo.facts((made,))) == slug
