"""Temporaries that wait between an early and a late use."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import long_lived
from tests.findings.small import limited
from tests.hlo import MIB, Hlo, Span


def waiting(
    points: int = 100,
    span: tuple[int, int] = (10, 90),
    read: int = 80,
    mib: int = 1,
    made: str = "sort",
    last: str = "jit(f)/add",
) -> ProgramFacts:
    """A temporary that is made first and read once more, among others that come and go.

    Args:
        points: The number of program points.
        span: The points at which the buffer is allocated and freed.
        read: How many other instructions are between the two, of 100.
        mib: The size of the buffer.
        made: The opcode that makes it from an argument.
        last: The op_name of its last reader.
    """
    hlo = Hlo()
    x = hlo.parameter(mib, 262144, path="x")
    early = hlo.add(made, x, dims=(mib, 262144), name=f"jit(f)/{made}")
    others = [hlo.add("negate", dims=(4096,)) for _ in range(read)]
    hlo.add("add", early, dims=(4096,))
    others += [hlo.add("negate", dims=(4096,)) for _ in range(points - read)]
    spans: dict[int, Span] = {early: span}
    free = [p for p in range(points - 1) if p not in span]
    for number, start, end in zip(others, free[::2], [*free[1::2], None], strict=False):
        spans[number] = start, end
    hlo.add("add", early, dims=(4096,), name=last)
    return hlo.facts(tuple(spans), message=limited(1000), spans=spans)


def slug(facts: ProgramFacts) -> str | None:
    """The finding's slug, if it is made."""
    finding = long_lived.find(facts)
    return finding.slug if finding is not None else None


def test_a_buffer_that_waits_through_most_of_the_program_is_found() -> None:
    """Its life is named by the points."""
    finding = long_lived.find(waiting())

    assert finding is not None
    assert finding.saves_bytes == MIB
    assert "1 buffer (1 MiB) lives through most of the program" in finding.evidence
    assert "from program point 10 to 90 of 100" in finding.evidence


@pytest.mark.parametrize("made", ["copy", "convert", "transpose"])
def test_an_argument_in_another_form_is_not_found(made: str) -> None:
    """The compiler makes it, and no line of the program can make it later."""
    assert slug(waiting(made=made)) is None


@pytest.mark.parametrize(
    ("last", "expected"), [("jit(f)/add", False), ("jit(f)/transpose(jvp())/add", True)]
)
def test_a_checkpoint_is_advised_where_a_gradient_is_computed(last: str, expected: bool) -> None:
    """Without one, jax.checkpoint changes nothing."""
    finding = long_lived.find(waiting(last=last))

    assert finding is not None
    assert ("jax.checkpoint" in finding.remedy) == expected


@pytest.mark.parametrize(("end", "expected"), [(69, None), (70, "long-lived")])
def test_it_lives_through_three_fifths_of_the_program(end: int, expected: str | None) -> None:
    """100 points, and a life that begins at the tenth."""
    assert long_lived.LEAST_IDLE_SHARE == 0.6
    assert slug(waiting(span=(10, end))) == expected


@pytest.mark.parametrize(("read", "expected"), [(45, None), (70, "long-lived")])
def test_it_is_not_read_through_three_fifths_of_its_life(read: int, expected: str | None) -> None:
    """A read in the middle leaves two short gaps."""
    assert slug(waiting(read=read)) == expected


@pytest.mark.parametrize(("points", "expected"), [(8, None), (10, "long-lived")])
def test_a_program_of_a_few_points_is_too_short(points: int, expected: str | None) -> None:
    """Below ten points every buffer lives through most of it."""
    assert long_lived.LEAST_POINTS == 10
    facts = waiting(points=points, span=(0, points - 2), read=points)

    assert (len(facts.summary.heap_bytes), slug(facts)) == (points, expected)


def test_a_buffer_with_more_readers_than_the_search_visits_is_not_found() -> None:
    """One that was missed may read it in the middle."""
    hlo = Hlo()
    early = hlo.add("sort", dims=(512, 512), name="jit(f)/sort")
    others = [hlo.add("negate", dims=(4096,)) for _ in range(1000)]
    for _ in range(300):
        hlo.add("add", early, dims=(4096,))
    spans: dict[int, Span] = {early: (0, 1999)}
    spans |= {number: (2 * n + 1, 2 * n + 2) for n, number in enumerate(others[:999])}
    facts = hlo.facts(tuple(spans), message=limited(1000), spans=spans)

    assert slug(facts) is None
