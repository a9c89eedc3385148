"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

import pytest

from hbmwatch._findings import residuals
from tests.findings.saved import BACKWARD, FORWARD, RECOMPUTED, UNDER, kept
from tests.hlo import MIB


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
    assert "one set per layer" in finding.evidence
