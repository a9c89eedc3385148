"""Arrays that are on the device beside a call."""

from __future__ import annotations

import dataclasses

import pytest

from hbmwatch import DeviceMemory, LiveArrays
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import find_findings
from hbmwatch._findings.verdict import verdict
from tests.hlo import MIB, Hlo


def beside(mib: float, limit_mib: int = 24) -> ProgramFacts:
    """A program of 8 MiB that scale with no batch, on a device with other arrays."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(n, 262144), name="jit(f)/sort") for n in (5, 3)]
    live = LiveArrays((512, 512), "float32", 4, int(mib * MIB), ("history in main(), train.py",))
    device = DeviceMemory("TPU v5 lite", 1, limit_bytes=limit_mib * MIB, live=(live,))
    return dataclasses.replace(hlo.facts(made), device=device)


def test_live_arrays_that_fill_the_device_come_first() -> None:
    """Before a smaller batch, with the variable that holds them."""
    facts = beside(20)
    first = find_findings(facts)[0]

    assert first.slug == "live-arrays"
    assert first.title == (
        "Free history: 20 MiB of the device's 24 MiB is in arrays that this call does not use"
    )
    assert first.evidence == (
        "On the fullest device: 4 x float32[512, 512] (20 MiB, held by history in main(), "
        "train.py)."
    )
    assert first.saves_bytes == 20 * MIB
    assert verdict(facts, [first]) == (
        "This frees up to 20 MiB; 4 MiB must be freed, so this is probably enough."
    )


@pytest.mark.parametrize(("mib", "is_found"), [(0.5, True), (0.15, False)])
def test_what_frees_less_than_the_minimum_is_left_to_the_notes(mib: float, is_found: bool) -> None:
    """2% of the peak, where the program fits beside them."""
    assert ("live-arrays" in [f.slug for f in find_findings(beside(mib))]) == is_found
