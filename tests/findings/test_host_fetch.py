"""What is fetched from host memory, and how much of it at a time."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify, host_fetch
from tests.findings.small import classified
from tests.hlo import MIB, Hlo, shape_of

HOST = 5


def fetched(count: int, space: int = HOST, opcode: str = "copy") -> Hlo:
    """Arguments in a memory space, and a copy of each in HBM."""
    hlo = Hlo()
    for layer in range(count):
        shape = shape_of(512, 512)
        shape["layout"]["memory_space"] = space
        w = hlo.parameter(path=f"layers[{layer}]", shape=shape)
        hlo.add(opcode, w, dims=(512, 512))
    return hlo


def copies(hlo: Hlo) -> list[int]:
    """The copies."""
    return [i["id"] for i in hlo.instructions if i["opcode"] != "parameter"]


@pytest.mark.parametrize(
    ("space", "opcode", "slug"),
    [(HOST, "copy", "host-fetch"), (0, "copy", None), (HOST, "negate", None)],
    ids=["from the host", "within HBM", "computed"],
)
def test_a_copy_of_a_value_in_host_memory_is_a_fetch(
    space: int, opcode: str, slug: str | None
) -> None:
    """It is no copy in another layout."""
    hlo = fetched(1, space, opcode)

    assert classified(hlo.facts(copies(hlo))) == slug


def test_two_fetched_arrays_are_needed() -> None:
    """One is used while the next is fetched."""
    hlo = fetched(5)
    (finding,) = classify.find(hlo.facts(copies(hlo)))

    assert host_fetch.NEEDED_AT_ONCE == 2
    assert finding.saves_bytes == 3 * MIB
    assert "a copy of the argument layers[0]" in finding.evidence


@pytest.mark.parametrize(("count", "freed"), [(1, MIB), (2, 2 * MIB), (3, MIB)])
def test_arrays_that_are_fetched_one_after_another_are_not_told(count: int, freed: int) -> None:
    """Of three on the host, one or two are on the device: the next one is fetched in time."""
    hlo = fetched(3)
    (all_fetched,) = classify.find(fetched(count).facts(copies(fetched(count))))
    (some,) = classify.find(hlo.facts(copies(hlo)[:count]))

    assert all_fetched.saves_bytes == freed
    assert some.saves_bytes == (freed if count == 3 else 0)


def test_a_stack_that_a_loop_reads_is_told() -> None:
    """Other arrays may stay on the host, such as an optimizer state."""
    hlo = fetched(3)
    stack = copies(hlo)[0]
    hlo.add("tuple", stack)
    (finding,) = classify.find(hlo.facts((stack,)))

    assert finding.saves_bytes == MIB
