"""Tests of this folder that need a compiler are skipped where it is not installed."""

from __future__ import annotations

import pytest

from tests.programs import why_not


@pytest.fixture(autouse=True)
def _compilers(request: pytest.FixtureRequest) -> None:
    """Looks for the compilers that the test's marks name."""
    for platform in ("tpu", "gpu"):
        if request.node.get_closest_marker(platform) and (reason := why_not(platform)):
            pytest.skip(reason)
