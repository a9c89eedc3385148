"""The search for the boundary, on curves whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbmwatch._preflight.search import Bracket, Point, halving_tries, search

LIMIT = 16126 * 2**20
Curve = Callable[[int], float]


def searched(
    curve: Curve, *, limit: int | None = LIMIT, start: int = 1, most: int | None = None
) -> tuple[Bracket, list[int]]:
    """Where a search on a curve ends, and what it tried."""
    tried: list[int] = []

    def ask(size: int) -> Point:
        tried.append(size)
        total = int(curve(size))
        return Point(total <= LIMIT, total)

    return search(ask, limit, start=start, most=most), tried


def line(answer: int, fixed: float) -> Curve:
    """A curve that meets the limit just above the answer."""
    slope = LIMIT * (1 - fixed) / (answer + 0.5)
    return lambda size: LIMIT * fixed + slope * size


def parabola(answer: int, fixed: float) -> Curve:
    """The same, bent upward, as attention over a sequence is."""
    room = LIMIT * (1 - fixed)
    return lambda size: LIMIT * fixed + room * (size / (answer + 0.5)) ** 2


def by_tiles(answer: int, fixed: float) -> Curve:
    """A line whose totals grow by whole tiles of eight."""
    inner = line(answer, fixed)
    return lambda size: inner(8 * math.ceil(size / 8))


def teeth(answer: int, fixed: float) -> Curve:
    """A line that falls back, as where XLA rematerializes."""
    inner = line(answer, fixed)
    return lambda size: inner(size) - (0.2 * inner(size) if size % 100 > 70 else 0)


answers, shares = st.integers(1, 10**6), st.floats(0, 0.95)


@settings(deadline=None)
@given(answers, shares, st.sampled_from([line, parabola, by_tiles, teeth]), st.integers(1, 1000))
def test_what_is_found_fits_and_the_next_does_not(
    answer: int, fixed: float, curve_of: Callable[[int, float], Curve], start: int
) -> None:
    """On every curve, from every start: low fits, low + 1 does not, and no size is tried twice."""
    curve = curve_of(answer, fixed)
    found, tried = searched(curve, start=start)

    if found.low is not None:
        assert curve(found.low) < LIMIT + 1
        assert found.high == found.low + 1
    assert found.high is not None
    assert int(curve(found.high)) > LIMIT
    assert len(set(tried)) == len(tried)


@settings(deadline=None)
@given(st.integers(1, 10**6), shares)
def test_on_a_line_it_takes_half_the_tries_of_halving(answer: int, fixed: float) -> None:
    """Where memory grows evenly, half of what doubling and halving take; at least four."""
    found, tried = searched(line(answer, fixed))

    assert found == Bracket(answer, answer + 1)
    assert len(tried) <= max(4, halving_tries(answer) // 2)


@settings(deadline=None)
@given(answers, shares)
def test_on_a_parabola_it_takes_no_more_tries_than_halving(answer: int, fixed: float) -> None:
    """Where memory grows with the square, as with a sequence, it is not worse than halving."""
    found, tried = searched(parabola(answer, fixed))

    assert found == Bracket(answer, answer + 1)
    assert len(tried) <= halving_tries(answer)


@settings(deadline=None)
@given(answers, shares, st.integers(1, 10**6))
def test_a_jump_costs_little_more_than_halving(answer: int, fixed: float, start: int) -> None:
    """Where totals say nothing, at most a few tries are lost."""

    def jump(size: int) -> float:
        return LIMIT * fixed if size <= answer else 2.0 * LIMIT

    found, tried = searched(jump, start=start)

    assert found == Bracket(answer, answer + 1)
    assert len(tried) <= halving_tries(answer, start) + 7


def test_without_a_limit_the_verdicts_alone_decide() -> None:
    """Where the limit is not known, it doubles and halves."""
    found, tried = searched(line(100, 0.5), limit=None)

    assert found == Bracket(100, 101)
    assert tried[:8] == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("answer", "most", "expected"),
    [(100, 64, Bracket(64, None)), (100, 1000, Bracket(100, 101)), (0, 10, Bracket(None, 1))],
)
def test_no_size_beyond_the_most_is_tried(answer: int, most: int, expected: Bracket) -> None:
    """`most` ends the search from above, and 1 from below."""
    found, tried = searched(line(answer, 0.5), most=most)

    assert found == expected
    assert max(tried) <= most


def test_halving_is_counted_as_it_would_be_done() -> None:
    """1, 2, 4, 8 (too large), 6, 5 for the answer 5."""
    assert [halving_tries(n) for n in (None, 1, 5, 64)] == [1, 2, 6, 14]
    assert halving_tries(5, start=8) == 4
