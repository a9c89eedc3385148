"""A training step whose state is most of the peak."""

from __future__ import annotations

import pytest

from hbmwatch._findings import arguments, training_state
from tests.findings.small import training_step
from tests.hlo import BF16, MIB

ADAM = ("params", "opt.mu", "opt.nu")


@pytest.mark.parametrize(
    ("trees", "accumulates"), [(ADAM, False), ((*ADAM, "opt.acc_grads"), True)], ids=["3", "4"]
)
def test_the_trees_of_a_state_are_named_with_their_bytes(
    trees: tuple[str, ...], accumulates: bool
) -> None:
    """Half of all but the parameters is freed in bfloat16; a fourth tree may be an accumulator."""
    finding = training_state.find(training_step(trees))

    assert finding is not None
    assert finding.title == (
        f"The state of the training step takes {100 * len(trees) // (len(trees) + 1)}% of the peak "
        f"({len(trees)} MiB): {len(trees)} arrays for each parameter"
    )
    assert "updated: " + ", ".join(f"{tree} 1 MiB" for tree in trees) + "." in finding.evidence
    assert ("accumulator" in finding.evidence) == accumulates
    assert finding.saves_bytes == (len(trees) - 1) * MIB // 2
    assert training_state.COPIES_WITH_ACCUMULATOR == training_state.COPIES_OF_ADAM + 1 == 4


@pytest.mark.parametrize(
    ("trees", "leaves"),
    [
        (("params",), ("[0]['w']", "[1]['w']", "[2]['w']")),
        (("params['encoder']", "params['decoder']"), ("['w']",)),
        (("left", "right"), ("['w']",)),
    ],
    ids=["layers", "two halves of a model", "no parameters"],
)
def test_equal_layers_are_no_moments(trees: tuple[str, ...], leaves: tuple[str, ...]) -> None:
    """Parameters of the same form are beside each other in any model."""
    assert training_state.find(training_step(trees, leaves=leaves)) is None


def test_layers_have_moments_of_their_own() -> None:
    """Each leaf is compared with those of the same last keys."""
    facts = training_step(ADAM, leaves=("[0]['w']", "[1]['w']"))
    finding = training_state.find(facts)

    assert finding is not None
    assert "3 arrays for each parameter" in finding.title
    assert "params 2 MiB, opt.mu 2 MiB, opt.nu 2 MiB" in finding.evidence
    assert finding.saves_bytes == 2 * MIB


def test_narrow_moments_cannot_be_halved() -> None:
    """They are in bfloat16 already."""
    finding = training_state.find(training_step(ADAM, rows=256, dtype=BF16))

    assert finding is not None
    assert (finding.saves_bytes, finding.buffers) == (0, ())


@pytest.mark.parametrize(("rows", "is_named"), [(1024, True), (1032, False)])
def test_a_state_below_half_of_the_peak_is_not_what_fills_it(rows: int, is_named: bool) -> None:
    """Two copies of the weights, and as many rows or a few more."""
    assert (training_state.find(training_step(ADAM[:2], rows)) is not None) == is_named
    assert training_state.LEAST_SHARE_OF_PEAK == 0.5


def test_a_program_without_a_gradient_has_no_moments() -> None:
    """A simulation may have several arrays of one form."""
    assert training_state.find(training_step(ADAM, name="jit(f)/dot_general")) is None


@pytest.mark.parametrize(("trees", "count"), [(6, 6), (7, 0)])
def test_more_than_six_trees_are_not_listed(trees: int, count: int) -> None:
    """What is larger than a hundredth counts."""
    names = ["params", *(f"opt.{word}" for word in "abcdefg"[: trees - 1])]
    finding = training_state.find(training_step(names, leaves=("['w']",)))

    assert training_state.MOST_TREES == 6
    assert finding is not None
    assert finding.evidence.count(" 1 MiB") == count


@pytest.mark.parametrize(("limit_mib", "named"), [(1.9, ""), (2, "adafactor"), (3, "both")])
def test_only_an_optimizer_with_which_the_state_fits_is_named(limit_mib: float, named: str) -> None:
    """4 MiB at the peak: Adafactor leaves 2 of them, and Lion 3."""
    facts = training_step(ADAM, limit_mib=limit_mib)
    expected = {"": "", "adafactor": "adafactor", "both": "adafactor, lion"}[named]

    assert training_state.optimizers(facts) == expected


def test_arguments_above_the_limit_are_told_by_their_trees() -> None:
    """The accumulator of optax.MultiSteps is as large as the parameters."""
    finding = arguments.find(training_step((*ADAM, "opt.acc_grads"), limit_mib=2))

    assert finding is not None
    assert "updated: params 1 MiB, opt.mu 1 MiB, opt.nu 1 MiB, opt.acc_grads 1 MiB." in (
        finding.evidence
    )
