"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

import pytest

from hbmwatch._findings import residuals
from tests.findings.saved import BACKWARD, FORWARD, RECOMPUTED, UNDER, kept
from tests.findings.small import classified
from tests.hlo import MIB, Hlo


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
