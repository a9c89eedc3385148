"""What is fetched from host memory, and how much of it at a time."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify, host_fetch
from tests.findings.small import classified
from tests.hlo import MIB, Hlo, Span, shape_of

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


@pytest.mark.parametrize(
    ("on_host", "spans", "freed"),
    [
        (1, [(0, 1)], MIB),
        (3, [(0, 1)], 0),
        (2, [(0, 2), (1, 3)], 2 * MIB),
        (3, [(0, 2), (1, 3)], 0),
        (3, [(0, None), (1, None)], 2 * MIB),
        (3, [(0, 3), (1, 2)], 2 * MIB),
        (3, [(0, 3), (1, 4), (2, 5)], MIB),
    ],
    ids=["one", "one of three", "two", "in turn", "both stay", "one inside", "all"],
)
def test_arrays_that_are_fetched_one_after_another_are_not_told(
    on_host: int, spans: list[Span], freed: int
) -> None:
    """Of three on the host, one or two are on the device: what is fetched first is freed first."""
    hlo = fetched(on_host)
    live = copies(hlo)[: len(spans)]
    (finding,) = classify.find(hlo.facts(live, spans=dict(zip(live, spans, strict=True))))

    assert finding.saves_bytes == freed


@pytest.mark.parametrize(("width", "freed"), [(1, MIB), (511, MIB), (512, 0), (1024, 0)])
def test_smaller_arrays_on_the_host_are_not_what_is_fetched_next(width: int, freed: int) -> None:
    """A scalar in host memory says nothing about an array that is fetched in full."""
    hlo = fetched(1)
    shape = shape_of(512, width)
    shape["layout"]["memory_space"] = HOST
    hlo.parameter(path="other", shape=shape)
    (finding,) = classify.find(hlo.facts(copies(hlo)))

    assert finding.saves_bytes == freed


def test_a_stack_that_a_loop_reads_is_told() -> None:
    """Other arrays may stay on the host, such as an optimizer state."""
    hlo = fetched(3)
    stack = copies(hlo)[0]
    hlo.add("tuple", stack)
    (finding,) = classify.find(hlo.facts((stack,)))

    assert finding.saves_bytes == MIB
