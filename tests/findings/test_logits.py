"""Logits: a softmax of a product that is much larger than its factors."""

from __future__ import annotations

import pytest

from hbmwatch._findings import products
from tests.findings.products import product
from tests.findings.small import classified
from tests.hlo import Hlo


@pytest.mark.parametrize(("features", "slug"), [(256, "logits"), (257, None)])
def test_a_product_is_large_from_twice_its_factors_on(features: int, slug: str | None) -> None:
    """A product of 512 tokens and 1024 words, beside an embedding of 1024 words."""
    facts = product((512, features), (features, 1024), (512, 1024), computed=True)

    assert products.LEAST_GROWTH == 2
    assert classified(facts) == slug


@pytest.mark.parametrize(
    ("user", "slug"),
    [
        ("jit(f)/jit(log_softmax)/sub", "logits"),
        ("jit(f)/logsumexp/sub", "logits"),
        ("jit(f)/jit(relu)/max", None),
    ],
)
def test_a_softmax_makes_logits_of_a_product(user: str, slug: str | None) -> None:
    """Of any other use, a large product is ordinary."""
    facts = product((2048, 8), (8, 4096), (2048, 4096), user=user, computed=True)

    assert classified(facts) == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [("jit(f)/exp", "logits"), ("jit(f)/logistic", None), ("jit(f)/transpose(jvp())/exp", None)],
    ids=["softmax by hand", "an activation", "a backward pass"],
)
def test_an_exponential_and_a_sum_are_a_softmax(name: str, slug: str | None) -> None:
    """Without the name of a softmax; but not with a logistic, nor in a backward pass."""
    hlo = Hlo()
    x = hlo.add("sort", hlo.parameter(2048, 8), dims=(2048, 8))
    dot = hlo.add("dot", x, hlo.parameter(8, 4096), dims=(2048, 4096))
    made = hlo.add("exponential", dot, dims=(2048, 4096), name=name)
    hlo.add("reduce", made, dims=(2048,), name=name)

    assert classified(hlo.facts((made,))) == slug
