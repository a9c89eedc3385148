"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import residuals, saved
from tests.findings.cases import explain
from tests.findings.saved import BACKWARD, FORWARD, RECOMPUTED, UNDER, kept
from tests.findings.small import classified
from tests.hlo import MIB, Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(
    ("name", "users", "is_found"),
    [
        (FORWARD, [BACKWARD], True),
        (FORWARD, ["jit(f)/jvp()/mul"], False),
        (BACKWARD, [BACKWARD], False),
        (FORWARD, [RECOMPUTED, UNDER], False),
        (FORWARD, [UNDER], False),
    ],
    ids=["kept", "used at once", "a gradient", "input of a layer", "saved by a policy"],
)
def test_residuals_are_made_forward_and_read_backward(
    name: str, users: list[str], is_found: bool
) -> None:
    """Without a checkpoint: the inputs of a checkpointed layer are needed."""
    assert (residuals.find(kept(3, name, users)) is not None) == is_found


def test_all_layers_but_one_are_freed() -> None:
    """One layer is recomputed at a time."""
    finding = residuals.find(kept(5))

    assert finding is not None
    assert finding.saves_bytes == 4 * MIB
    assert "5 buffers (5 MiB at the peak) are residuals" in finding.evidence
    assert "one set per layer or step" in finding.evidence


@pytest.mark.parametrize(("operation", "products"), [("dot_general", True), ("mul", False)])
def test_a_policy_that_saves_products_is_named_where_there_are_products(
    operation: str, products: bool
) -> None:
    """dots_saveable keeps nothing of what is computed element by element."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    made = [hlo.add("sort", x, dims=(512, 512), name=f"jit(f)/jvp()/{operation}") for _ in range(5)]
    for one in made:
        hlo.add("multiply", one, dims=(512, 512), name=BACKWARD)
    finding = residuals.find(hlo.facts(tuple(made)))

    assert residuals.LEAST_SHARE_OF_PRODUCTS == 0.1
    assert finding is not None
    assert ("dots_saveable" in finding.will_not_help) == products


@pytest.mark.parametrize(
    ("equal", "part"), [(5, "each layer or step"), (1, "the computation")], ids=["five", "one"]
)
def test_a_layer_has_equal_residuals(equal: int, part: str) -> None:
    """Layers and the steps of a loop in Python look alike; a single set is of neither."""
    hlo = Hlo()
    x = hlo.parameter(512, 256, path="x")
    sizes = [512] * equal if equal > 1 else [512, 1024]
    made = [hlo.add("sort", x, dims=(size, 256), name=FORWARD) for size in sizes]
    for one in made:
        dims = hlo.known[one]["shape"]["dimensions"]
        hlo.add("multiply", one, dims=dims, name=BACKWARD)
    finding = residuals.find(hlo.facts(tuple(made)))

    assert finding is not None
    assert finding.title == f"Rematerialize: put jax.checkpoint (remat) around {part}"
    assert f"(jax.remat; flax nn.remat) around {part}, with" in finding.remedy
    assert ("one set per layer or step" in finding.evidence) == (equal > 1)


def test_the_logits_are_no_residual_of_a_layer() -> None:
    """The backward pass reads them too, but no layer makes them: their line is not named."""
    hlo = Hlo()
    x, w = hlo.parameter(512, 256, path="x"), hlo.parameter(256, 8192, path="w")
    hidden = [hlo.add("sort", x, dims=(512, 256), name=FORWARD) for _ in range(5)]
    logits = hlo.add("dot", hidden[-1], w, dims=(512, 8192), name="jit(f)/jvp()/dot_general")
    hlo.add("subtract", logits, dims=(512, 8192), name="jit(f)/jvp(log_softmax)/sub")
    for made in (*hidden, logits):
        hlo.add("multiply", made, dims=hlo.known[made]["shape"]["dimensions"], name=BACKWARD)
    facts = hlo.facts((*hidden, logits))
    finding = residuals.find(facts)

    assert classified(facts) == "logits"
    assert finding is not None
    assert finding.saves_bytes == 4 * MIB // 2
    assert "5 buffers (2.5 MiB at the peak) are residuals" in finding.evidence


@pytest.mark.parametrize(
    ("weights", "result", "freed", "part"),
    [
        (1, 512, 16 * MIB // 2, "groups of layers"),
        (2, 512, 15 * MIB, "each layer or step"),
        (1, 256, 15 * MIB, "each layer or step"),
    ],
    ids=["a chain of layers", "two products of each", "a smaller result"],
)
def test_a_chain_of_layers_is_checkpointed_in_groups(
    weights: int, result: int, freed: int, part: str
) -> None:
    """Around a single layer, a checkpoint keeps what goes into it: 2 * sqrt(16) of 16 remain."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(512, 512), name=FORWARD) for _ in range(16)]
    for residual in made:
        for _ in range(weights):
            w = hlo.parameter(512, result, path="w")
            hlo.add("dot", residual, w, dims=(512, result), name="jit(f)/jvp()/dot_general")
        hlo.add("multiply", residual, dims=(512, 512), name=BACKWARD)
    finding = residuals.find(hlo.facts(tuple(made)))

    assert finding is not None
    assert finding.title == f"Rematerialize: put jax.checkpoint (remat) around {part}"
    assert finding.saves_bytes == freed


@pytest.mark.parametrize(("other", "chain"), [(5, True), (6, False)])
def test_a_chain_is_three_quarters_of_the_residuals(other: int, chain: bool) -> None:
    """The rest is freed by a checkpoint around each layer."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(512, 512), name=FORWARD) for _ in range(16)]
    for residual in made:
        w = hlo.parameter(512, 512, path="w")
        hlo.add("dot", residual, w, dims=(512, 512), name="jit(f)/jvp()/dot_general")
    made += [hlo.add("sort", dims=(1024, 256), name=FORWARD) for _ in range(other)]
    for residual in made:
        hlo.add(
            "multiply", residual, dims=hlo.known[residual]["shape"]["dimensions"], name=BACKWARD
        )
    facts = hlo.facts(tuple(made))

    assert saved.LEAST_SHARE_OF_CHAIN == 0.75
    assert saved.is_chain(facts, facts.buffers.saved) == chain


@pytest.mark.parametrize(
    ("carry", "freed", "part"),
    [
        (186, 7 * MIB // 4 - 186 * 8 * 1024, "the body of the scan"),
        (187, 2 * MIB - int(4 * MIB / 8**0.5), "groups of steps of the scan"),
    ],
    ids=["a small carry", "the carry"],
)
def test_a_checkpoint_around_a_step_keeps_the_carry(carry: int, freed: int, part: str) -> None:
    """As much as the stack, where each step only makes the next carry: 8 steps, 256 KiB each."""
    hlo = Hlo()
    zero = hlo.add("broadcast", hlo.parameter(1), dims=(8, 256, 256))
    begin = hlo.add("tuple", zero, hlo.parameter(carry, 256, path="h"))
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=(8, 256, 256), tuple_index=0)
    h = body.add("get-tuple-element", carried, dims=(carry, 256), tuple_index=1)
    value = body.add("exponential", dims=(1, 256, 256), name="jit(f)/jvp()/while/body/exp")
    name = "jit(f)/jvp()/while/body/x"
    update = body.add("dynamic-update-slice", whole, value, dims=(8, 256, 256), name=name)
    body.add("tuple", update, body.add("tanh", h, dims=(carry, 256)))
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    hlo.add("negate", dims=(1,), name=BACKWARD)
    finding = residuals.find(hlo.facts((zero,)))

    assert residuals.MORE_IN_GROUPS == 2
    assert finding is not None
    assert finding.title == f"Rematerialize: put jax.checkpoint (remat) around {part}"
    assert finding.saves_bytes == freed
    kept_in_all = "keeps what goes into it, 1.5 MiB in all" in finding.evidence
    assert kept_in_all == part.startswith("groups")


def stack(hlo: Hlo, steps: int, rows: int) -> int:
    """A loop of the forward pass that stacks a residual, and the id of the stack."""
    dims = (steps, rows, 256)
    zero = hlo.add("broadcast", hlo.parameter(1), dims=dims)
    begin = hlo.add("tuple", zero)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=dims, tuple_index=0)
    name = "jit(f)/jvp()/while/body/exp"
    value = body.add("exponential", dims=(1, rows, 256), name=name)
    body.add("tuple", body.add("dynamic-update-slice", whole, value, dims=dims, name=name))
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    return zero


@pytest.mark.parametrize(
    ("loops", "says"),
    [
        ([(8, 512), (64, 8)], "backward pass, 4 MiB of them stacked by a scan of 8 steps."),
        ([(8, 8), (64, 512)], "backward pass, 32 MiB of them stacked by a scan of 64 steps."),
        ([(8, 512), (8, 8)], "backward pass, stacked by a scan of 8 steps."),
    ],
    ids=["the shorter", "the longer", "equally long"],
)
def test_the_steps_are_those_of_the_scan_that_stacks_most(
    loops: list[tuple[int, int]], says: str
) -> None:
    """A longer scan that stacks little is another one."""
    hlo = Hlo()
    stacks = [stack(hlo, steps, rows) for steps, rows in loops]
    hlo.add("negate", dims=(1,), name=BACKWARD)
    finding = residuals.find(hlo.facts(tuple(stacks)))

    assert finding is not None
    assert says in finding.evidence


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("reduced", [False, True], ids=["in the loss", "in each step"])
def test_the_output_of_a_scan_that_a_loss_reads_is_no_residual(reduced: bool) -> None:
    """A checkpoint around the step leaves it; reduced in each step, it is never stacked."""

    def loss(w: Any, x: Any) -> Any:
        def step(x: Any, _: None) -> tuple[Any, Any]:
            y = jnp.tanh(x @ w)
            return y, (jnp.sin(y) ** 2).sum() if reduced else jnp.sin(y)

        return (jax.lax.scan(step, x, None, length=40)[1] ** (1 if reduced else 2)).sum()

    found = explain(on_one(jax.grad(loss), array(128, 128), array(4096, 128)), 64).findings
    kept = next(f for f in found if f.slug == "residuals")
    stacked = [f for f in found if f.slug == "stacked-outputs"]

    assert [f.saves_bytes for f in stacked] == ([] if reduced else [40 * 4096 * 128 * 4])
    assert not {name for f in stacked for name in f.buffers} & {*kept.buffers}


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("border", [1, 0], ids=["the inside", "all of it"])
def test_a_field_whose_inside_each_step_writes_is_what_goes_into_the_step(border: int) -> None:
    """All but its border is no slice of a stack: a checkpoint around one step keeps the field."""

    def loss(field: Any) -> Any:
        def step(u: Any, _: None) -> tuple[Any, None]:
            v = u[1:-1, 1:-1]
            v = v + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] - 2 * v) ** 2
            return (u.at[1:-1, 1:-1].set(v) if border else jnp.pad(v, 1)), None

        return (jax.lax.scan(step, field, None, length=40)[0] ** 2).sum()

    first = explain(on_one(jax.grad(loss), array(1000, 1000)), 64).findings[0]

    assert first.title.startswith(
        "Rematerialize: put jax.checkpoint (remat) around groups of steps of the scan"
    )
