"""A vmap over many samples."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import classify, samples
from hbmwatch._findings.random_bits import RETURNED
from tests.findings.cases import explain
from tests.findings.products import SOFTMAX, product
from tests.findings.small import classified, largest
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("jit(f)/vmap()/add", "samples"),
        ("jit(f)/vmap()/jit(_normal)/mul", "samples"),
        ("jit(f)/jit(_normal)/vmap()/mul", None),
        ("jit(f)/jit(searchsorted)/vmap(jit(_searchsorted_scan_impl))/add", None),
        ("jit(f)/vmap(jit(searchsorted))/vmap(jit(_searchsorted_scan_impl))/add", "samples"),
        ("jit(f)/jvp(vmap())/add", None),
        ("jit(f)/add", None),
    ],
    ids=[
        "mapped",
        "draws for each",
        "the generator's own vmap",
        "a search's own vmap",
        "searches for each",
        "the batch of a loss",
        "plain",
    ],
)
def test_a_vmap_of_the_user_makes_samples(name: str, slug: str | None) -> None:
    """Not the vmap inside of a function of JAX, nor that of a loss."""
    hlo = Hlo()
    made = hlo.add("broadcast", hlo.parameter(512), dims=(512, 512), name=name)

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(
    ("name", "slug"), [("jit(f)/vmap()/dot_general", "samples"), ("jit(f)/dot_general", "logits")]
)
def test_a_likelihood_of_each_sample_is_no_logits(name: str, slug: str) -> None:
    """A mapped product that a softmax reads."""
    facts = product((2048, 8), (8, 4096), (2048, 4096), name, SOFTMAX, computed=True)

    assert classified(facts) == slug


def test_an_identity_matrix_under_a_vmap_is_no_sample() -> None:
    """jnp.eye makes one matrix for all entries."""
    hlo = Hlo()
    numbers = [hlo.add("iota", dims=(512, 512), name="jit(f)/vmap()/iota") for _ in range(2)]
    equal = hlo.add("compare", *numbers, dims=(512, 512), name="jit(f)/vmap()/eq")
    name = "jit(f)/vmap()/convert_element_type"
    made = hlo.add("convert", equal, dims=(512, 512), name=name)

    assert classified(hlo.facts((made,))) is None


@pytest.mark.parametrize("returned", [True, False], ids=["a result", "a temporary"])
def test_chunks_alone_do_not_make_a_result_smaller(returned: bool) -> None:
    """It has to be reduced, sharded or moved."""
    hlo = Hlo()
    x = hlo.parameter(8, path="x")
    made = hlo.add("sort", x, dims=(512, 512), name="jit(f)/vmap()/sort")
    facts = hlo.facts(outputs=(made,)) if returned else hlo.facts((made,))
    (finding,) = classify.find(facts)

    assert finding.slug == "samples"
    assert ("Chunks alone do not make a result" in finding.remedy) == returned


@pytest.mark.parametrize(
    ("dims", "name", "of_weights"),
    [
        ((64, 128, 256), "jit(f)/vmap(transpose(jvp()))/dot_general", True),
        ((64, 1, 256, 128), "jit(f)/vmap(transpose(jvp()))/dot_general", True),
        ((128, 256), "jit(f)/transpose(jvp())/dot_general", False),
        ((64, 100, 256), "jit(f)/vmap(transpose(jvp()))/dot_general", False),
        ((64, 128, 256), "jit(f)/vmap(jvp())/dot_general", False),
    ],
    ids=["each example", "one layer of a stack", "of all", "an activation", "the forward pass"],
)
def test_gradients_of_weights_for_each_example(
    dims: tuple[int, ...], name: str, of_weights: bool
) -> None:
    """A vmap around a gradient, in the form of the weights or of one layer of them."""
    hlo = Hlo()
    hlo.parameter(4, 128, 256, path="params")
    forward = hlo.add("sort", dims=(8,), name="jit(f)/vmap(jvp())/sort")
    hlo.add("negate", forward, dims=(8,), name="jit(f)/vmap(transpose(jvp()))/neg")
    made = hlo.add("sort", dims=dims, name=name)

    assert samples.is_weight_gradient(largest(hlo.facts((made,)))) == of_weights


@pytest.mark.parametrize(
    ("rows", "remedy"),
    [
        ((512, 256), "The results of the program among them (256 KiB) stay as large."),
        ((512, 0), "and reduce inside."),
    ],
    ids=["a temporary and a result", "a temporary"],
)
def test_a_result_does_not_count_beside_what_chunks_free(
    rows: tuple[int, int], remedy: str
) -> None:
    """It stays in full, and the temporary is freed."""
    hlo = Hlo()
    x = hlo.parameter(8, path="x")
    made = hlo.add("sort", x, dims=(rows[0], 512), name="jit(f)/vmap()/sort")
    names = [hlo.add("sort", x, dims=(rows[1], 256), name="jit(f)/vmap()/sort")] if rows[1] else []
    (finding,) = classify.find(hlo.facts((made,), outputs=tuple(names)))

    assert finding.saves_bytes == rows[0] * 512 * 4
    assert finding.remedy.endswith(remedy)


def draw(key: Any, mean: Any) -> Any:
    """The weights of one layer."""
    return 0.02 * jax.random.normal(key, (1024, 2048))


def sample(key: Any, mean: Any) -> Any:
    """A sample around a mean, which may be reduced."""
    return mean + 0.02 * jax.random.normal(key, (1024, 2048))


@pytest.mark.tpu
@pytest.mark.parametrize("loop", ["vmap", "map", "unrolled"])
@pytest.mark.parametrize(("layer", "is_drawn"), [(draw, True), (sample, False)])
def test_nobody_reduces_weights_that_a_program_draws(layer: Any, is_drawn: bool, loop: str) -> None:
    """The initializer of eight layers returns them: as one array, or as eight."""

    def init(key: Any, mean: Any) -> Any:
        keys = jax.random.split(key, 8)
        if loop == "unrolled":
            return [layer(key, mean) for key in keys]
        if loop == "map":
            return jax.lax.map(lambda key: layer(key, mean), keys)
        return jax.vmap(layer, (0, None))(keys, mean)

    lowered = on_one(init, array(2, dtype=jnp.uint32), array(2048))
    first = explain(lowered, 16).findings[0]

    if loop == "unrolled":
        assert ("hold what a random generator draws" in first.evidence) == is_drawn
        assert first.remedy.startswith("Return less") == (not is_drawn)
    else:
        assert (first.remedy == RETURNED) == is_drawn
