"""Logits: a softmax of a product that is much larger than its factors."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify, products
from tests.findings.products import SOFTMAX, product
from tests.findings.small import classified
from tests.hlo import S32, U32, Hlo


@pytest.mark.parametrize(("features", "slug"), [(256, "logits"), (257, None)])
def test_a_product_is_large_from_twice_its_factors_on(features: int, slug: str | None) -> None:
    """A product of 512 tokens and 1024 words, beside an embedding of 1024 words."""
    facts = product((512, features), (features, 1024), (512, 1024), computed=True)

    assert products.LEAST_GROWTH == 2
    assert classified(facts) == slug


@pytest.mark.parametrize(
    ("user", "labels", "slug"),
    [
        ("jit(f)/jit(log_softmax)/sub", None, "logits"),
        ("jit(f)/jit(argmax)/reduce", None, "logits"),
        ("jit(f)/logsumexp/sub", S32, "logits"),
        ("jit(f)/logsumexp/sub", U32, "logits"),
        ("jit(f)/logsumexp/sub", None, "logits"),
        ("jit(f)/jit(relu)/max", S32, None),
    ],
    ids=["softmax", "argmax", "a sum with labels", "with a key", "a sum alone", "no softmax"],
)
def test_a_softmax_makes_logits_of_a_product(
    user: str, labels: int | None, slug: str | None
) -> None:
    """Of any other use, a product is ordinary."""
    facts = product((2048, 8), (8, 4096), (2048, 4096), user=user, computed=True, labels=labels)

    assert classified(facts) == slug


@pytest.mark.parametrize(
    ("name", "labels", "slug"),
    [
        ("jit(f)/exp", S32, "logits"),
        ("jit(f)/exp", None, "logits"),
        ("jit(f)/logistic", S32, None),
        ("jit(f)/transpose(jvp())/exp", S32, None),
    ],
    ids=["softmax by hand", "no labels", "an activation", "a backward pass"],
)
def test_an_exponential_and_a_sum_are_a_softmax(
    name: str, labels: int | None, slug: str | None
) -> None:
    """Without the name of a softmax; but not with a logistic, nor in a backward pass."""
    hlo = Hlo()
    x = hlo.add("sort", hlo.parameter(2048, 8), dims=(2048, 8))
    dot = hlo.add("dot", x, hlo.parameter(8, 4096), dims=(2048, 4096))
    if labels is not None:
        hlo.parameter(2048, dtype=labels, path="labels")
    made = hlo.add("exponential", dot, dims=(2048, 4096), name=name)
    hlo.add("reduce", made, dims=(2048,), name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("user", "checkpoint"), [(SOFTMAX, False), ("jit(f)/transpose(jvp(log_softmax))/sub", True)]
)
def test_a_chunk_is_checkpointed_where_a_gradient_is_computed(user: str, checkpoint: bool) -> None:
    """The forward pass of a program without a gradient keeps nothing."""
    facts = product((2048, 8), (8, 4096), (2048, 4096), user=user, computed=True)
    (finding,) = classify.find(facts)

    assert finding.slug == "logits"
    assert ("jax.checkpoint" in finding.remedy) == checkpoint


@pytest.mark.parametrize(
    ("user", "rows", "index", "title"),
    [
        (SOFTMAX, 4096, S32, "Full-vocabulary logits: compute the loss in chunks"),
        (SOFTMAX, 2000, S32, "A matrix product that a softmax reads{rest}"),
        (SOFTMAX, 4096, U32, "A matrix product that a softmax reads{rest}"),
        ("jit(f)/logsumexp/sub", 0, S32, "A matrix product that a logsumexp reads{rest}"),
        ("jit(f)/exp", 0, S32, "A matrix product that an exponential with a sum reads{rest}"),
    ],
    ids=["an embedding", "another table", "no tokens", "no table", "by hand"],
)
def test_a_vocabulary_is_a_table_from_which_tokens_select_rows(
    user: str, rows: int, index: int, title: str
) -> None:
    """Otherwise, the classes of a softmax are not called words, nor its rows tokens."""
    hlo = Hlo()
    x, head = hlo.parameter(2048, 8, path="x"), hlo.parameter(8, 4096, path="head")
    x = hlo.add("sort", x, dims=(2048, 8))
    tokens = hlo.parameter(2048, dtype=index, path="tokens")
    hlo.parameter(2048, dtype=S32, path="labels")
    if rows:
        table = hlo.parameter(rows, 8, path="table")
        hlo.add("gather", table, tokens, dims=(2048, 8), name="jit(f)/gather")
    made = hlo.add("dot", x, head, dims=(2048, 4096), name="jit(f)/dot_general")
    soft = hlo.add("exponential", made, dims=(2048, 4096), name=user)
    hlo.add("reduce", soft, dims=(2048,), name=user)
    (finding,) = classify.find(hlo.facts((soft,)))

    assert finding.title == title.format(rest=" exists for all rows at once: compute it in chunks")
    assert ("tokens" in finding.remedy) == title.startswith("Full")


@pytest.mark.parametrize(("user", "slug"), [(SOFTMAX, "logits"), ("jit(f)/mul", None)])
def test_logits_that_the_devices_gather_are_logits(user: str, slug: str | None) -> None:
    """Each device computes them for its part of the vocabulary."""
    hlo = Hlo()
    x = hlo.add("sort", hlo.parameter(1024, 8, path="x"), dims=(1024, 8))
    table = hlo.parameter(8, 512, path="table")
    part = hlo.add("dot", x, table, dims=(1024, 512), name="jit(f)/dot_general")
    whole = hlo.add("all-gather", part, dims=(1024, 1024), name="jit(f)/sharding_constraint")
    hlo.add("subtract", whole, whole, dims=(1024, 1024), name=user)

    assert classified(hlo.facts((whole,))) == slug
