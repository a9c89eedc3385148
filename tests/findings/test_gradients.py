"""Gradients of all layers of a scan, and sums of gradients that a loop carries."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from tests.findings.cases import slugs
from tests.hlo import BF16, F32, MIB, S32, Hlo

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
