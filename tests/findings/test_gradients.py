"""Gradients of all layers of a scan, and sums of gradients that a loop carries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from tests.findings.cases import explain, slugs
from tests.hlo import BF16, F32, MIB, S32, Hlo
from tests.oom_programs.base import array, on_one

LAYERS = (8, 256, 512)
FORWARD = "jit(f)/jvp()/while"
BACKWARD = "jit(f)/transpose(jvp())/while"


def stacked(context: str, updated: bool = True) -> ProgramFacts:
    """A loop that writes a slice of a stack of the form of the parameters in each step."""
    hlo = Hlo()
    w = hlo.parameter(*LAYERS, path="params['w']")
    zero = hlo.add("broadcast", dims=LAYERS)
    begin = hlo.add("tuple", zero)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=LAYERS, tuple_index=0)
    name = f"{context}/body/dot_general"
    value = body.add("dot", dims=(1, *LAYERS[1:]), name=name)
    body.add("tuple", body.add("dynamic-update-slice", whole, value, dims=LAYERS, name=name))
    loop = hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    made = hlo.add("get-tuple-element", loop, dims=LAYERS, tuple_index=0)
    new = hlo.add("subtract", *((w, made) if updated else (made, made)), dims=LAYERS)
    return hlo.facts((zero,), outputs=(new,))


@pytest.mark.parametrize(
    ("context", "updated", "slug"),
    [(BACKWARD, True, "gradients"), (FORWARD, True, "stacked-outputs"), (BACKWARD, False, None)],
    ids=["gradients", "outputs", "of what is not trained"],
)
def test_what_a_backward_scan_stacks_in_the_form_of_the_parameters_are_gradients(
    context: str, updated: bool, slug: str | None
) -> None:
    """The stack has the form of an argument that the program returns updated."""
    assert slugs(classify.find(stacked(context, updated))) == ([slug] if slug else [])


def test_all_layers_but_one_are_freed() -> None:
    """The gradients of one layer exist where the update is a part of the backward pass."""
    (finding,) = classify.find(stacked(BACKWARD))

    assert finding.saves_bytes == 7 * MIB // 2
    assert "8 steps of 512 KiB" in finding.evidence


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        ("clipped", "Shard parameters and gradients over more devices (FSDP). A reduction over"),
        ("logged", "If the update does not wait for all gradients, as a clip by their global"),
        ("returned", "Shard parameters and gradients over more devices (FSDP). The gradients are"),
    ],
)
def test_an_update_is_moved_into_the_backward_pass_only_where_it_can_be(
    step: str, remedy: str
) -> None:
    """It needs an update, and a clip by the global norm waits for all gradients."""

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None))
        return (jax.lax.scan(body, x, weights)[0] ** 2).sum()

    def train(weights: Any, x: Any) -> Any:
        grads = jax.grad(loss)(weights, x)
        if step == "returned":
            return grads
        norm = jnp.sqrt(sum((g**2).sum() for g in grads))
        scale = jnp.minimum(1.0, 1.0 / norm) if step == "clipped" else 1.0
        return [w - 0.1 * scale * g for w, g in zip(weights, grads)], norm

    weights = [array(16, 1024, 2048), array(16, 2048, 1024)]
    lowered = on_one(train, weights, array(64, 1024))
    found = [f for f in explain(lowered, 150).findings if f.slug == "gradients"]

    assert [f.remedy[: len(remedy)] for f in found] == [remedy]


def summed(name: str, opcode: str = "add", dtype: int = F32) -> ProgramFacts:
    """A loop that carries an array of the form of a parameter, and replaces it in each step."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=dtype, path="params['w']")
    hlo.parameter(4, 64, dtype=S32, path="tokens")
    zero = hlo.add("custom-call", dims=(512, 512), dtype=dtype)
    begin = hlo.add("tuple", zero)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    total = body.add("get-tuple-element", carried, dims=(512, 512), dtype=dtype, tuple_index=0)
    inside = hlo.inner()
    old = inside.parameter(512, 512, dtype=dtype)
    term = inside.add("dot", dims=(512, 512), dtype=dtype, name=name)
    inside.add(opcode, old, term, dims=(512, 512), dtype=dtype)
    made = body.add("fusion", total, dims=(512, 512), calls=inside, dtype=dtype)
    body.add("tuple", made)
    loop = hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    made = hlo.add("get-tuple-element", loop, dims=(512, 512), dtype=dtype, tuple_index=0)
    new = hlo.add("subtract", w, made, dims=(512, 512), dtype=dtype)
    return hlo.facts((zero,), outputs=(new,))


@pytest.mark.parametrize(
    ("name", "opcode", "slug"),
    [
        ("jit(f)/while/body/transpose(jvp())/dot_general", "add", "gradients"),
        ("jit(f)/while/body/dot_general", "add", None),
        ("jit(f)/while/body/transpose(jvp())/dot_general", "multiply", None),
    ],
    ids=["a sum of gradients", "a sum of other values", "no sum"],
)
def test_a_loop_that_adds_gradients_up_carries_as_much_as_the_parameters(
    name: str, opcode: str, slug: str | None
) -> None:
    """As gradient accumulation by a scan over micro-batches does."""
    assert slugs(classify.find(summed(name, opcode))) == ([slug] if slug else [])


@pytest.mark.parametrize(("dtype", "saves"), [(F32, MIB // 2), (BF16, 0)])
def test_half_of_a_sum_in_float32_is_freed(dtype: int, saves: int) -> None:
    """A sum in bfloat16 has no narrower dtype to go to."""
    name = "jit(f)/while/body/transpose(jvp())/dot_general"
    (finding,) = classify.find(summed(name, dtype=dtype))

    assert finding.title.startswith("A loop carries the sum of the gradients")
    assert finding.saves_bytes == saves
