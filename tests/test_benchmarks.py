"""The benchmarks time functions by name; each of them is there."""

from __future__ import annotations

import pytest

from benchmarks import failure_path


@pytest.mark.parametrize("phase", failure_path.PHASES)
def test_the_functions_of_a_phase_are_there(phase: str) -> None:
    """A function that was renamed would leave its phase without time."""
    functions = failure_path.PHASES[phase]

    assert [name for module, name in functions if not callable(getattr(module, name, None))] == []
