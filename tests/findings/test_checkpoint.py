"""A jax.checkpoint that covers too much, saves too much, or has very many layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import checkpoint
from tests.findings.cases import explain
from tests.findings.saved import BACKWARD, FORWARD, RECOMPUTED, UNDER, kept
from tests.hlo import MIB, Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(("count", "is_found"), [(2, False), (3, True)])
def test_three_recomputed_layers_at_once_are_too_many(count: int, is_found: bool) -> None:
    """Two equal values may be of one layer."""
    finding = checkpoint.find(kept(count, RECOMPUTED))

    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.title == (
            "A jax.checkpoint covers too much: several layers or parts are recomputed at once"
        )
        assert "the body of the scan" not in finding.remedy


@pytest.mark.parametrize(
    ("under", "count"),
    [
        ("jit(f)/transpose(jvp())/while/body/checkpoint", 4),
        ("jit(f)/transpose(jvp())/checkpoint", 3),
    ],
    ids=["of the same checkpoint", "of another one"],
)
def test_what_a_coarse_checkpoint_recomputes_once_is_counted(under: str, count: int) -> None:
    """It is recomputed with the equal values, and freed with them."""
    hlo = Hlo()
    layers = "jit(f)/transpose(jvp())/while/body/checkpoint/rematted_computation"
    made = [hlo.add("sort", dims=(512, 512), name=f"{layers}/dot_general") for _ in range(3)]
    made.append(hlo.add("sort", dims=(1024, 512), name=f"{under}/rematted_computation/softmax"))
    finding = checkpoint.find(hlo.facts(made))

    assert finding is not None
    size = 5 if count == 4 else 3
    assert finding.evidence == (
        f"{count} buffers of rematted_computation ({size} MiB), computed, exist at the same time "
        "at the peak."
    )
    assert "several layers or parts" in finding.title
    assert "inside of this checkpoint or instead of it" in finding.remedy


def test_what_a_policy_saves_is_found() -> None:
    """Its reader is under the checkpoint."""
    finding = checkpoint.find(kept(3, FORWARD, [UNDER]))

    assert finding is not None
    assert finding.title == "Save less: the policy of jax.checkpoint (remat) keeps 3 MiB"
    assert finding.saves_bytes == 2 * MIB


@pytest.mark.parametrize(("layers", "is_found"), [(31, False), (32, True)])
def test_the_inputs_of_32_layers_are_worth_nesting(layers: int, is_found: bool) -> None:
    """Of fewer, groups would not keep much less."""
    finding = checkpoint.find(kept(layers, FORWARD, [RECOMPUTED, UNDER]))

    assert checkpoint.LEAST_NESTED_LAYERS == 32
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.saves_bytes == 32 * MIB - 2 * 32 * MIB // 5


@pytest.mark.parametrize(("others", "is_found"), [(32, True), (33, False)])
def test_the_inputs_are_half_of_the_peak(others: int, is_found: bool) -> None:
    """Less is not worth the work."""
    assert checkpoint.LEAST_SHARE_OF_INPUTS == 0.5
    facts = kept(32, FORWARD, [RECOMPUTED, UNDER], other_mib=others)

    assert (checkpoint.find(facts) is not None) == is_found


def test_a_program_without_a_checkpoint_has_none() -> None:
    """Residuals have a finding of their own."""
    assert checkpoint.find(kept(3, FORWARD, [BACKWARD])) is None


@pytest.mark.tpu
def test_a_coarse_checkpoint_in_a_loop_over_micro_batches_is_told() -> None:
    """The loop around the step is none of its backward pass: all layers are recomputed."""

    def layers(weights: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return jnp.tanh(jnp.tanh(x @ w) * jnp.sin(x)), None

        return jax.lax.scan(body, x, weights)[0]

    def grads(weights: Any, x: Any) -> Any:
        return jax.grad(lambda w: (jax.checkpoint(layers)(w, x) ** 2).sum())(weights)

    def accumulated(weights: Any, batches: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + grads(weights, x), None

        return jax.lax.scan(step, jnp.zeros_like(weights), batches)[0]

    lowered = on_one(accumulated, array(12, 512, 512), array(3, 65536, 512))
    first = explain(lowered, 512).findings[0]
    assert first.slug == "checkpoint"
    assert first.title.startswith("A jax.checkpoint covers too much: all 12 steps of a scan at ")
    assert first.remedy.startswith("Put jax.checkpoint around each layer (the body of the scan), ")


def test_a_checkpoint_that_is_nested_needs_no_nesting() -> None:
    """Each group of layers is checkpointed, and each layer in it."""
    nested = "jit(f)/transpose(jvp())/while/body/closed_call/checkpoint/while/body/checkpoint/mul"

    assert checkpoint.find(kept(32, FORWARD, [RECOMPUTED, UNDER, nested])) is None


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    ("groups", "is_found"), [(0, True), (32, False)], ids=["a loop within a layer", "groups"]
)
def test_a_checkpointed_loop_within_a_layer_is_no_group_of_layers(
    groups: int, is_found: bool
) -> None:
    """Blocks of queries, each under a checkpoint, leave the inputs of all layers."""

    def layer(x: Any, w: Any) -> Any:
        block = jax.checkpoint(lambda q: jax.nn.softmax(q @ x.T) @ x)
        return x + jnp.tanh(jax.lax.map(block, x.reshape(8, -1, 512)).reshape(x.shape) @ w), None

    def group(x: Any, weights: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(layer), x, weights)

    def loss(weights: Any, x: Any) -> Any:
        if not groups:
            return (group(x, weights)[0] ** 2).sum()
        grouped = weights.reshape(groups, -1, 512, 512)
        return (jax.lax.scan(jax.checkpoint(group), x, grouped)[0] ** 2).sum()

    lowered = on_one(jax.grad(loss), array(64, 512, 512), array(4096, 512))
    first = explain(lowered, 128).findings[0]

    assert first.title.startswith("Nest jax.checkpoint") == is_found


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("around", ["block", "network"])
def test_blocks_with_a_checkpoint_each_are_not_said_to_have_one_around_all(around: str) -> None:
    """A block makes equal values, so the recomputation of one block has several of them."""

    def block(weights: Any, x: Any) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(jnp.sin(h @ w) * h)
        return x + h

    def network(blocks: Any, x: Any) -> Any:
        for weights in blocks:
            x = (jax.checkpoint(block) if around == "block" else block)(weights, x)
        return x

    def loss(blocks: Any, x: Any) -> Any:
        return ((network if around == "block" else jax.checkpoint(network))(blocks, x) ** 2).sum()

    blocks = [[array(256, 256) for _ in range(5)] for _ in range(4)]
    found = explain(on_one(jax.grad(loss), blocks, array(65536, 256)), 64).findings
    kept = [f.title for f in found if "covers too much" in f.title]

    assert bool(kept) == (around == "network")
    rest = next(f for f in found if f.slug == "aggregate")
    assert around == "network" or "are kept for the backward pass" not in rest.evidence


@pytest.mark.parametrize(("layers", "is_found"), [("555", False), ("567", True)])
def test_equal_values_of_one_numbered_layer_are_not_all_layers(layers: str, is_found: bool) -> None:
    """A library's scope shows to which layer each belongs."""
    hlo = Hlo()
    under = "jit(f)/transpose(jvp(Net))/checkpoint/rematted_computation"
    names = [f"{under}/b{layer}/Dense_{n}/dot_general" for n, layer in enumerate(layers)]
    made = [hlo.add("sort", dims=(512, 512), name=name) for name in names]

    assert (checkpoint.find(hlo.facts(made)) is not None) == is_found


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_what_a_step_keeps_beside_a_checkpoint_is_none_of_its_policy(policy: Any) -> None:
    """The backward pass reads it outside of the checkpoint that is in the same step."""

    def loss(w: Any, x: Any) -> Any:
        def inner(y: Any, s: Any) -> tuple[Any, None]:
            return jnp.tanh(y @ w + s), None

        def outer(x: Any, _: Any) -> tuple[Any, None]:
            y = jax.lax.scan(inner, x, jnp.arange(50.0))[0]
            return jnp.sin(y) * jnp.tanh(y), None

        def within(x: Any, _: Any) -> tuple[Any, None]:
            y = jax.checkpoint(lambda x: jax.lax.scan(inner, x, jnp.arange(50.0))[0])(x)
            return jnp.sin(y) * jnp.tanh(y), None

        body = within if policy is None else jax.checkpoint(outer, policy=policy)
        return (jax.lax.scan(body, x, jnp.arange(40.0))[0] ** 2).sum()

    found = explain(on_one(jax.grad(loss), array(128, 128), array(4096, 128)), 64).findings
    by_policy = [f.title for f in found if f.title.startswith("Save less: the policy")]

    assert bool(by_policy) == (policy is not None)
