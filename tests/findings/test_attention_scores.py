"""Attention scores, against logits."""

from __future__ import annotations

import pytest

from hbmwatch._findings import attention_scores, classify
from hbmwatch._findings.rank import find_findings
from tests.findings.products import SOFTMAX, product
from tests.findings.saved import BACKWARD
from tests.findings.small import classified
from tests.hlo import Hlo


@pytest.mark.parametrize(
    ("first", "second", "dims", "weighs", "slug"),
    [
        ((2, 512, 8), (2, 1024, 8), (2, 512, 1024), "jit(f)/dot_general", "attention-scores"),
        ((2, 512, 8), (2, 1024, 8), (2, 512, 1024), "", "logits"),
        ((2, 512, 8), (1, 8, 1024), (2, 512, 1024), "", "logits"),
        ((1024, 8), (8, 1024), (1024, 1024), "jit(f)/dot_general", "attention-scores"),
        ((1024, 8), (8, 1024), (1024, 1024), "jit(f)/transpose(jvp())/dot_general", "logits"),
        ((1024, 8), (8, 1024), (1024, 1024), "", "logits"),
        ((1024, 8), (8, 1025), (1024, 1025), "", "logits"),
    ],
    ids=[
        "two batches",
        "no values",
        "a batch and a matrix",
        "square",
        "gradient",
        "nothing",
        "not square",
    ],
)
def test_both_factors_of_scores_have_a_batch(
    first: tuple[int, ...], second: tuple[int, ...], dims: tuple[int, ...], weighs: str, slug: str
) -> None:
    """Three dimensions each that are not 1, or a square result; and values are multiplied by it."""
    assert attention_scores.LEAST_RANK == 3
    assert classified(product(first, second, dims, computed=True, weighs=weighs)) == slug


@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
def test_each_kernel_is_named_with_its_platform(trains: bool) -> None:
    """cuDNN is for GPUs; blocks of queries need jax.checkpoint where gradients are taken."""
    facts = product(
        (2, 512, 8),
        (2, 1024, 8),
        (2, 512, 1024),
        computed=True,
        trains=trains,
        weighs="jit(f)/dot_general",
    )
    (finding,) = classify.find(facts)
    checkpoint = ", with jax.checkpoint around each block" if trains else ""

    assert finding.remedy == (
        "Use attention that never stores the score matrix: on a TPU, a Pallas kernel "
        "(flash_attention or splash_attention); on a GPU, "
        'jax.nn.dot_product_attention with implementation="cudnn". Or jax.lax.map over blocks of '
        f"queries{checkpoint}."
    )


@pytest.mark.parametrize(
    ("name", "dims", "count"),
    [
        ("jit(f)/transpose(jvp())/dot_general", (2, 1024, 512), 2),
        ("jit(f)/transpose(jvp())/dot_general", (2, 512, 512), 1),
        ("jit(f)/dot_general", (2, 1024, 512), 1),
    ],
    ids=["gradient", "another size", "forward"],
)
def test_the_gradient_of_scores_is_one_of_the_buffers(
    name: str, dims: tuple[int, ...], count: int
) -> None:
    """An attention that never stores the scores does not store their gradient either."""
    hlo = Hlo()
    x = hlo.parameter(2, 512, 8, path="x")
    q, k = hlo.add("sort", x, dims=(2, 512, 8)), hlo.add("sort", x, dims=(2, 1024, 8))
    made = hlo.add("dot", q, k, dims=(2, 512, 1024), name="jit(f)/dot_general")
    soft = hlo.add("subtract", made, made, dims=(2, 512, 1024), name=SOFTMAX)
    hlo.add("dot", soft, k, dims=(2, 512, 8), name="jit(f)/dot_general")
    gradient = hlo.add("dot", q, k, dims=dims, name=name)
    findings = classify.find(hlo.facts((made, gradient)))
    (scores,) = [finding for finding in findings if finding.slug == "attention-scores"]

    assert len(scores.buffers) == count


@pytest.mark.parametrize(
    ("factor", "slugs"),
    [((16, 64, 64), ["attention-scores"]), ((64, 64), [])],
    ids=["two batches of tokens", "a weight"],
)
def test_the_scores_of_every_layer_are_a_finding_beside_the_residuals(
    factor: tuple[int, ...], slugs: list[str]
) -> None:
    """An attention that never stores them frees them, as jax.checkpoint does."""
    hlo = Hlo()
    x = hlo.parameter(16, 512, 64, path="x")
    kept = []
    for _ in range(3):
        q, k = hlo.add("sort", x, dims=(16, 512, 64)), hlo.add("sort", x, dims=factor)
        made = hlo.add("dot", q, k, dims=(16, 512, 512), name="jit(f)/jvp()/dot_general")
        raised = hlo.add("exponential", made, dims=(16, 512, 512), name="jit(f)/jvp()/exp")
        total = hlo.add("reduce", raised, dims=(16, 512), name="jit(f)/jvp()/reduce_sum")
        total = hlo.add("broadcast", total, dims=(16, 512, 512), name="jit(f)/jvp()/div")
        soft = hlo.add("divide", raised, total, dims=(16, 512, 512), name="jit(f)/jvp()/div")
        hlo.add("dot", soft, q, dims=(16, 512, 64), name="jit(f)/jvp()/dot_general")
        hlo.add("multiply", soft, dims=(16, 512, 512), name=BACKWARD)
        kept.append(soft)
    facts = hlo.facts(kept)

    assert [finding.slug for finding in classify.find(facts)] == slugs
    assert [finding.slug for finding in find_findings(facts)] == ["residuals", *slugs]


@pytest.mark.parametrize(
    ("name", "slug"), [("jit(f)/jit(softmax)/exp", "attention-scores"), ("jit(f)/exp", "logits")]
)
def test_a_square_of_exponentials_is_attention_only_by_its_name(
    name: str, slug: str | None
) -> None:
    """The kernel of a Gaussian process is one, too."""
    hlo = Hlo()
    x, y = hlo.parameter(1024, 8, path="x"), hlo.parameter(8, 1024, path="y")
    made = hlo.add("dot", x, y, dims=(1024, 1024), name="jit(f)/dot_general")
    kernel = hlo.add("exponential", made, dims=(1024, 1024), name=name)
    hlo.add("reduce", kernel, dims=(1024,), name="jit(f)/reduce_sum")
    hlo.add("dot", kernel, x, dims=(1024, 8), name="jit(f)/dot_general")

    assert classified(hlo.facts((kernel,))) == slug


def test_scores_of_all_layers_count_more_than_those_of_the_layer_at_the_peak() -> None:
    """jax.checkpoint frees them: the remedy does not say that it does not help."""
    hlo = Hlo()
    x = hlo.parameter(16, 512, 64, path="x")
    made = []
    for layer in range(4):
        q, k = (hlo.add("sort", x, dims=(16, 512, 64)) for _ in range(2))
        name = "jit(f)/jvp()/" if layer else "jit(f)/transpose(jvp())/"
        scores = hlo.add("dot", q, k, dims=(16, 512, 512), name=f"{name}dot_general")
        soft = hlo.add("exponential", scores, dims=(16, 512, 512), name=f"{name}softmax/exp")
        hlo.add("dot", soft, q, dims=(16, 512, 64), name="jit(f)/jvp()/dot_general")
        hlo.add("multiply", soft, dims=(16, 512, 512), name=BACKWARD)
        made.append(soft)
    found = {f.slug: f for f in find_findings(hlo.facts(made))}

    assert len(found["attention-scores"].buffers) == 4
    assert found["attention-scores"].title.startswith("The attention scores of every layer")
    assert not found["attention-scores"].will_not_help
