"""Arguments that are too much alone."""

from __future__ import annotations

import pytest

from hbmwatch._findings import arguments, phrases
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._records.message import OomMessage
from tests.findings.cases import explain
from tests.findings.small import limited, training_step
from tests.hlo import BF16, MIB, REPLICATED, Hlo
from tests.oom_programs.base import array, mlp, on_one, size


@pytest.mark.parametrize(("limit_mib", "is_found"), [(3.5, True), (4, False)])
def test_arguments_above_the_limit_are_found(limit_mib: float, is_found: bool) -> None:
    """Sharding over twice as many devices frees half of them."""
    hlo = Hlo()
    hlo.parameter(1024, 1024, path="params[0]")
    hlo.add("negate", dims=(1,))
    finding = arguments.find(hlo.facts(message=limited(limit_mib)))

    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.title == "The arguments alone take 4 MiB; the device has 3.5 MiB"
        assert finding.saves_bytes == 2 * MIB
        assert finding.evidence.endswith(
            " It would take 2 MiB in bfloat16, or 2 MiB if sharded over 2 times as many devices."
        )


@pytest.mark.parametrize(
    ("times", "device_count", "is_named"),
    [(4096, 1, True), (4097, 1, False), (2048, 2, True), (2049, 2, False)],
)
def test_no_more_devices_are_named_than_a_mesh_can_have(
    times: int, device_count: int, is_named: bool
) -> None:
    """4096, those at hand included."""
    hlo = Hlo()
    hlo.parameter(times, 1024, dtype=BF16, path="table")
    hlo.add("negate", dims=(1,))
    limit = OomMessage("RESOURCE_EXHAUSTED", limit_bytes=2048)
    finding = arguments.find(hlo.facts(message=limit, call=CallInfo(device_count=device_count)))

    assert phrases.MOST_DEVICES == 4096
    assert finding is not None
    assert (f" if sharded over {times} times as many" in finding.evidence) == is_named


@pytest.mark.parametrize(
    ("trees", "limit_mib", "file", "ending"),
    [
        (3, 1.9, "train.py", "or keep optimizer state in host memory."),
        (3, 2.9, "train.py", "than the two moments of Adam (adafactor)."),
        (3, 2.9, "/site-packages/optax/x.py", "than the two moments of Adam (optax.adafactor)."),
        (1, 0.9, "train.py", "or keep some of them in host memory."),
    ],
    ids=["none fits", "one fits", "by optax", "no moments"],
)
def test_an_optimizer_may_hold_less(trees: int, limit_mib: float, file: str, ending: str) -> None:
    """Where the program would fit with it; optax's optimizers where optax is used."""
    names = ("params", "opt.mu", "opt.nu")[:trees]
    index = {"file_names": [file]}
    facts = training_step(names, limit_mib=limit_mib, stack_frame_index=index)
    finding = arguments.find(facts)

    assert finding is not None
    assert finding.remedy.endswith(ending)


def test_a_cache_may_be_shorter() -> None:
    """It has the length for which it was allocated."""
    hlo = Hlo()
    hlo.parameter(512, 512, path="cache['k']")
    hlo.add("negate", dims=(1,))
    finding = arguments.find(hlo.facts(message=limited(0.5)))

    assert finding is not None
    assert finding.remedy.endswith("or allocate the cache for a shorter length or fewer sequences.")


@pytest.mark.parametrize(("limit_mib", "is_found"), [(2, False), (1.9, True)])
def test_what_the_devices_at_hand_hold_when_sharded_is_no_finding(
    limit_mib: float, is_found: bool
) -> None:
    """A replicated argument has a finding of its own; more devices are not needed."""
    hlo = Hlo()
    hlo.parameter(1024, 1024, path="params[0]")
    hlo.add("negate", dims=(1,))
    facts = hlo.facts(message=limited(limit_mib), spmd_parameters_shardings=[REPLICATED])

    assert facts.device_count == 2
    assert (arguments.find(facts) is not None) == is_found


@pytest.mark.tpu
def test_arguments_that_are_too_much_alone_are_told() -> None:
    """Arguments above the limit are a finding, after what would make them smaller."""
    weights = [array(8192, 8192)] * 70
    (finding,) = explain(on_one(mlp, weights, array(8, 8192))).findings
    given = 70 * size(8192, 8192) + size(8, 8192)

    assert finding.slug == "arguments"
    assert finding.saves_bytes == pytest.approx(given / 2, rel=0.001)
