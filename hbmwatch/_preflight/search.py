"""Finds the boundary between sizes that fit and sizes that do not, in few tries.

A try gives the total of a size as well as its verdict. A line or a parabola through the totals
predicts the boundary. The prediction can be wrong, for example where XLA rematerializes, so the
search never takes more than a few tries more than halving the range would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_LARGEST_LEAP = 64
_MOST_FLAT = 2**30  # no dimension is padded to so many elements
_SLACK = 2  # the search in a bracket may take this many tries more than halving


@dataclass(frozen=True, slots=True)
class Point:
    """The result of trying one size.

    Attributes:
        fits: Whether it fits.
        total: What it needs; None if unknown.
    """

    fits: bool
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Bracket:
    """A size that fits and a larger one that does not.

    Attributes:
        low: The size that fits; None if no tried size fits.
        high: The size that does not fit; None if no tried size is too large.
    """

    low: int | None
    high: int | None


def search(
    ask: Callable[[int], Point],
    limit: int | None,
    *,
    start: int = 1,
    most: int | None = None,
    known: Mapping[int, Point] | None = None,
) -> Bracket:
    """A size that fits, while the next size does not.

    Returns:
        low and high = low + 1; no high if `most` fits, or if memory does not grow with the size; no
        low, and high = 1, if nothing fits.

    Args:
        ask: Tries a size, 1 or more.
        limit: The total up to which a size fits; None if unknown.
        start: The first size to try.
        most: The largest size to try.
        known: Sizes that were tried before.
    """
    points = dict(known or {})

    def fits(size: int) -> bool:
        if size not in points:
            points[size] = ask(size)
        return points[size].fits

    found = ends(points)
    low, high = found.low, found.high
    if low is None and high is None:
        first = max(1, min(start, most or start))
        low, high = (first, None) if fits(first) else (None, first)
    while high is None:
        assert low is not None
        is_flat = _is_flat(points, low)
        if low == most or (is_flat and most is None):
            return Bracket(low, None)
        size = most if is_flat and most is not None else _above(points, low, limit, most)
        low, high = (size, None) if fits(size) else (low, size)
    while low is None:
        if high == 1:
            return Bracket(None, 1)
        size = _below(points, high, limit)
        low, high = (size, high) if fits(size) else (None, size)
    return _closed(points, fits, low, high, limit)


def _is_flat(points: Mapping[int, Point], low: int) -> bool:
    """Whether a size takes no more than a far smaller one: then no size may be too large."""
    total = points[low].total
    return total is not None and any(
        size * _MOST_FLAT <= low and point.total is not None and point.total >= total
        for size, point in points.items()
    )


def _closed(
    points: Mapping[int, Point],
    fits: Callable[[int], bool],
    low: int,
    high: int,
    limit: int | None,
) -> Bracket:
    """The bracket, narrowed until no size is between its ends."""
    halvings = math.ceil(math.log2(high - low)) + _SLACK
    risen = fallen = 0  # tries in a row that moved one end as little as can be
    while high - low > 1:
        halvings -= 1
        most_left = 2 ** max(0, halvings)
        size = _between(points, low, high, limit)
        # Totals grow in steps, by whole tiles: a neighbor may need no more.
        if size == low + 1:
            size = low + 2**risen
        elif size == high - 1:
            size = high - 2**fallen
        size = min(max(size, high - most_left, low + 1), low + most_left, high - 1)
        near_low, near_high = size - low <= 2**risen, high - size <= 2**fallen
        if fits(size):
            low, risen, fallen = size, risen + 1 if near_low else 0, 0
        else:
            high, risen, fallen = size, 0, fallen + 1 if near_high else 0
    return Bracket(low, high)


def halving_tries(answer: int | None, start: int = 1) -> int:
    """How many tries doubling from `start` and then halving would take for this answer."""
    target = answer or 0
    if start > target:
        low, high, tries = 0, start, 1
        while low == 0 and high > 1:
            size = high // 2
            tries += 1
            low, high = (size, high) if size <= target else (0, size)
    else:
        low, high, tries = start, 2 * start, 2
        while high <= target:
            low, high, tries = high, 2 * high, tries + 1
    while high - low > 1:
        size = (low + high) // 2
        tries += 1
        low, high = (size, high) if size <= target else (low, size)
    return tries


def ends(points: Mapping[int, Point]) -> Bracket:
    """The largest size that fits, and the next larger one that does not."""
    low = max((size for size, point in points.items() if point.fits), default=None)
    refused = [size for size, point in points.items() if not point.fits]
    above = [size for size in refused if low is None or size > low]
    return Bracket(low, min(above, default=None))


# --- where to try next ----------------------------------------------------------------------------


def _above(points: Mapping[int, Point], low: int, limit: int | None, most: int | None) -> int:
    """A size larger than all tried ones: the predicted boundary, else twice the largest."""
    size = 2 * low
    expected = _expected(points, low, None, limit)
    if expected is not None:
        size = min(max(low + 1, expected), _LARGEST_LEAP * low)
    return size if most is None else min(size, most)


def _below(points: Mapping[int, Point], high: int, limit: int | None) -> int:
    """A size smaller than all tried ones."""
    expected = _expected(points, None, high, limit)
    total = points[high].total
    if expected is None and limit is not None and total is not None and total > limit:
        expected = int(high * limit / total)  # as if the total were proportional to the size
    if expected is None:
        expected = high // 2
    return min(max(expected, 1, high // _LARGEST_LEAP), high - 1)


def _between(points: Mapping[int, Point], low: int, high: int, limit: int | None) -> int:
    """A size between the ends."""
    expected = _expected(points, low, high, limit)
    if expected is not None:
        # If the predicted size is one of the ends, its neighbor is left to try.
        return min(max(expected, low + 1), high - 1)
    if low > 0 and high / low > 4:
        return math.isqrt(low * high)
    return (low + high) // 2


def _expected(
    points: Mapping[int, Point], low: int | None, high: int | None, limit: int | None
) -> int | None:
    """The largest size that should fit, predicted from the points nearest to the boundary."""
    if limit is None:
        return None
    around = [end for end in (low, high) if end is not None]
    near = sorted(
        (min(abs(size - end) for end in around), size, point.total)
        for size, point in points.items()
        if point.total is not None
    )
    measured = [(size, total) for _, size, total in near]
    for fit in (_by_parabola, _by_line):
        size = fit(measured, limit, low, high)
        if size is not None:
            return size
    return None


def _by_line(
    measured: list[tuple[int, int]], limit: int, low: int | None, high: int | None
) -> int | None:
    """Where the line through the two nearest sizes meets the limit."""
    if len(measured) < 2:
        return None
    (a, total_a), (b, total_b) = measured[:2]
    slope = (total_b - total_a) / (b - a)
    if slope <= 0:
        return None
    return _inside(a + (limit - total_a) / slope, low, high)


def _by_parabola(
    measured: list[tuple[int, int]], limit: int, low: int | None, high: int | None
) -> int | None:
    """Where the parabola through the three nearest sizes meets the limit, if it bends upward."""
    if len(measured) < 3:
        return None
    (a, total_a), (b, total_b), (c, total_c) = sorted(measured[:3])
    first, second = (total_b - total_a) / (b - a), (total_c - total_b) / (c - b)
    bend = (second - first) / (c - a)
    if first <= 0 or second <= 0 or bend <= 0:
        return None
    # total_a + (x - a) * first + (x - a) * (x - b) * bend == limit, in x - a
    linear = first - bend * (b - a)
    root = linear * linear + 4 * bend * (limit - total_a)
    if root < 0:
        return None
    return _inside(a + (math.sqrt(root) - linear) / (2 * bend), low, high)


def _inside(size: float, low: int | None, high: int | None) -> int | None:
    """The size as a whole number; None if it contradicts the ends of the bracket."""
    if not math.isfinite(size):
        return None
    whole = math.floor(size)
    if low is not None and whole < low - 1:
        return None
    return None if high is not None and whole > high else whole
