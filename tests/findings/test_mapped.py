"""What a vmap makes for each of its entries is named after the vmap, and not after its shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.findings.cases import explain
from tests.findings.small import classified, limited
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one

Map = Callable[..., Any]


def outer_products(over: Map) -> Any:
    """An outer product of each event, and a Fourier transform of it."""

    def one(p: Any) -> Any:
        tensor = jnp.outer(jnp.outer(p[0], p[1]), jnp.outer(p[2], p[3]))
        return jnp.abs(jnp.fft.fft(tensor)).sum()

    return on_one(lambda events: over(one, events), array(2048, 4, 16))


def gaussian_processes(over: Map) -> Any:
    """A draw of a Gaussian process for each posterior sample."""

    def draw(points: Any, length: Any, noise: Any) -> Any:
        scaled = points / length
        kernel = jnp.exp(-((scaled[:, None] - scaled[None]) ** 2).sum(-1))
        return jnp.linalg.cholesky(kernel + 1e-6 * jnp.eye(len(points))) @ noise

    def all_draws(points: Any, lengths: Any, noise: Any) -> Any:
        return over(lambda given: draw(points, *given), (lengths, noise))

    return on_one(all_draws, array(1024, 2), array(64), array(64, 1024))


def categories(over: Map) -> Any:
    """The log-likelihood of a multinomial model for each chain and draw."""

    def all_chains(x: Any, labels: Any, betas: Any) -> Any:
        def one(beta: Any) -> Any:
            scores = jax.nn.log_softmax(x @ beta)
            return jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]

        return over(lambda chain: over(one, chain), betas)

    labels = array(16384, dtype=jnp.int32)
    return on_one(all_chains, array(16384, 16), labels, array(4, 16, 16, 128))


def in_chunks(fun: Any, xs: Any) -> Any:
    """The remedy: one entry at a time."""
    return jax.lax.map(fun, xs)


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.parametrize("program", [outer_products, gaussian_processes, categories])
def test_the_axis_of_a_vmap_is_what_to_go_over(program: Callable[[Map], Any]) -> None:
    """Not blocks of rows or of tokens; after the remedy, nothing is said of the large buffers."""
    first = explain(program(lambda fun, xs: jax.vmap(fun)(xs)), 64).findings[0]
    repaired = explain(program(in_chunks), 64).findings

    assert first.slug == "samples"
    assert first.title.startswith("A vmap computes all of its results at once at test_mapped.py:")
    assert not {"samples", "pairwise", "logits", "attention-scores"} & {f.slug for f in repaired}


@pytest.mark.parametrize(
    ("first", "second", "name", "slug"),
    [
        ((0, 1), (0, 2), "jit(f)/vmap()/mul", "samples"),
        ((0, 1), (0, 2), "jit(f)/jvp(vmap())/mul", "samples"),
        ((0, 1), (0, 2), "jit(f)/mul", "pairwise"),
        ((0, 2), (1, 2), "jit(f)/vmap(vmap())/mul", "pairwise"),
        ((1, 2), (0,), "jit(f)/vmap()/mul", "pairwise"),
    ],
    ids=["for each", "for each in a loss", "a batch", "vmaps make the pairs", "one vmap does"],
)
def test_an_axis_that_all_factors_have_is_mapped(
    first: Sequence[int], second: Sequence[int], name: str, slug: str
) -> None:
    """The vmap has a leading axis that both arrays of the pairs have."""
    hlo, dims = Hlo(), (64, 64, 64)
    rows = [
        hlo.add("broadcast", hlo.parameter(*(64 for _ in axes)), dims=dims, dimensions=axes)
        for axes in (first, second)
    ]
    made = hlo.add("multiply", *rows, dims=dims, name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(("limit", "slug"), [(0.015, "pairwise"), (0.016, "samples")])
def test_the_pairs_of_one_entry_that_do_not_fit_remain_pairs(limit: float, slug: str) -> None:
    """Fewer entries at a time would not be enough."""
    hlo, dims = Hlo(), (64, 64, 64)
    rows = [
        hlo.add("broadcast", hlo.parameter(64, 64), dims=dims, dimensions=axes)
        for axes in ((0, 1), (0, 2))
    ]
    made = hlo.add("multiply", *rows, dims=dims, name="jit(f)/vmap()/mul")

    assert classified(hlo.facts((made,), message=limited(limit))) == slug


def test_what_is_added_to_the_pairs_of_each_entry_need_not_be_mapped() -> None:
    """Such as a multiple of the identity, which makes a matrix positive definite."""
    hlo, dims = Hlo(), (64, 64, 64)
    rows, columns, same = (
        hlo.add("broadcast", hlo.parameter(64, 64), dims=dims, dimensions=axes)
        for axes in ((0, 1), (0, 2), (1, 2))
    )
    pairs = hlo.add("multiply", rows, columns, dims=dims, name="jit(f)/vmap()/mul")
    made = hlo.add("add", pairs, same, dims=dims, name="jit(f)/vmap()/add")

    assert classified(hlo.facts((made,))) == "samples"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("jit(f)/vmap(vmap())/dot_general", "samples"),
        ("jit(f)/vmap(vmap(vmap()))/dot_general", "logits"),
    ],
    ids=["a row of scores for each", "one score for each"],
)
def test_scores_of_each_entry_have_more_axes_than_there_are_vmaps(name: str, slug: str) -> None:
    """With a vmap for each axis, there is no inner structure."""
    hlo = Hlo()
    x, y = hlo.parameter(1024, 8, path="x"), hlo.parameter(8, 64, 32, path="y")
    made = hlo.add("dot", x, y, dims=(1024, 64, 32), name=name)
    hlo.add("subtract", made, made, dims=(1024, 64, 32), name="jit(f)/jit(log_softmax)/sub")

    assert classified(hlo.facts((made,))) == slug
