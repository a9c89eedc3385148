"""A large array that the function closes over."""

from __future__ import annotations

from tests.findings.small import classified
from tests.hlo import Hlo


def test_a_constant_with_a_buffer_is_a_captured_array() -> None:
    """The compiler allocates memory for it, as for no small constant."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(512, 512))
    hlo.add("negate", table, dims=(512, 512))

    assert classified(hlo.facts(constants=(table,))) == "constant"


def test_a_temporary_is_no_constant() -> None:
    """What is computed from a constant is not captured."""
    hlo = Hlo()
    number = hlo.add("constant")
    made = hlo.add("broadcast", number, dims=(512, 512))

    assert classified(hlo.facts((made,))) is None
