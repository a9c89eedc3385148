"""Attention scores, against logits."""

from __future__ import annotations

import pytest

from hbmwatch._findings import attention_scores
from tests.findings.products import product
from tests.findings.small import classified


@pytest.mark.parametrize(
    ("first", "second", "dims", "slug"),
    [
        ((2, 512, 8), (2, 1024, 8), (2, 512, 1024), "attention-scores"),
        ((2, 512, 8), (1, 8, 1024), (2, 512, 1024), "logits"),
        ((1024, 8), (8, 1024), (1024, 1024), "attention-scores"),
        ((1024, 8), (8, 1025), (1024, 1025), "logits"),
    ],
    ids=["two batches", "a batch and a matrix", "square", "not square"],
)
def test_both_factors_of_scores_have_a_batch(
    first: tuple[int, ...], second: tuple[int, ...], dims: tuple[int, ...], slug: str
) -> None:
    """Three dimensions each that are not 1, or a square result."""
    assert attention_scores.LEAST_RANK == 3
    assert classified(product(first, second, dims, computed=True)) == slug
