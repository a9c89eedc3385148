"""Arguments that are too much alone."""

from __future__ import annotations

import pytest

from hbmwatch._findings import arguments
from tests.findings.cases import explain
from tests.findings.small import limited
from tests.hlo import MIB, Hlo
from tests.oom_programs.base import array, mlp, on_one, size


@pytest.mark.parametrize(("limit_mib", "is_found"), [(3.5, True), (4, False)])
def test_arguments_above_the_limit_are_found(limit_mib: float, is_found: bool) -> None:
    """What they are over the limit is what has to go."""
    hlo = Hlo()
    hlo.parameter(1024, 1024, path="params[0]")
    hlo.add("negate", dims=(1,))
    finding = arguments.find(hlo.facts(message=limited(limit_mib)))

    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.title == "The arguments alone take 4 MiB; the device has 3.5 MiB"
        assert finding.saves_bytes == MIB // 2


@pytest.mark.tpu
def test_arguments_that_are_too_much_alone_are_told() -> None:
    """Arguments above the limit are a finding, after what would make them smaller."""
    weights = [array(8192, 8192)] * 70
    (finding,) = explain(on_one(mlp, weights, array(8, 8192))).findings
    limit = int(15.75 * 1024) * MIB
    given = 70 * size(8192, 8192) + size(8, 8192)

    assert finding.slug == "arguments"
    assert finding.saves_bytes == pytest.approx(given - limit, rel=0.001)
