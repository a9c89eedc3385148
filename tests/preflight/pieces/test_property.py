"""Random programs give the same values in pieces, wherever they are cut."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbmwatch._preflight import pieces
from tests.preflight.pieces.evaluate import evaluate
from tests.preflight.pieces.grammar import Code, arguments, codes, function

# One example is one cut of one program. Thousands take longer than a test may: use --timeout=0.
EXAMPLES = int(os.environ.get("HBMWATCH_PIECES_EXAMPLES", "240"))
CUTS = 8


@dataclass(frozen=True)
class Cut:
    """Where and how a program is cut."""

    seed: pieces.Seed
    n: int
    strided: bool
    donates: bool = False
    remakes: int = 0


def flat(args: Any) -> list[Any]:
    """The leaves of the arguments, as NumPy arrays where they are numbers."""
    return [
        x if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)
        for x in jax.tree.leaves(args)
    ]


def differ(expected: Any, actual: Any) -> str | None:
    """How two outputs differ, by more than rounding for floats."""
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return f"{expected.dtype}{expected.shape} became {actual.dtype}{actual.shape}"
    if expected.dtype.kind != "f":
        return None if np.array_equal(expected, actual) else "other integers"
    if not expected.size:
        return None
    if not np.array_equal(np.isfinite(expected), np.isfinite(actual)):
        return "other infinities"
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=1.0)
    error = np.abs(expected[finite] - actual[finite]).max(initial=0.0) / scale
    return None if error <= 1e-5 else f"off by {error:.1e} of {scale:.1e}"


def outcome_of(closed: Any, values: list[Any], expected: list[Any], cut: Cut) -> str:
    """How the program runs in the pieces of one cut. It fails where the values differ."""
    donated = range(len(values)) if cut.donates else ()
    try:
        rewritten = pieces.rewrite(
            closed, cut.seed, cut.n, strided=cut.strided, donated=donated, remakes=cut.remakes
        )
    except pieces.Refused:
        return "refused"
    actual = evaluate(rewritten.jaxpr, values)
    found = [differ(*pair) for pair in zip(expected, actual, strict=True)]
    assert not any(found), (cut, found)
    weak = [aval.weak_type for aval in rewritten.jaxpr.out_avals]
    assert weak == [aval.weak_type for aval in closed.out_avals]
    return "made whole" if rewritten.reasons else "in pieces"


def cuts_of(closed: Any, first: int, n: int) -> list[Cut]:
    """Some cuts of a program: blocks and strided pieces, and a shorter last piece."""
    seeds = pieces.seeds(closed, most=1000)
    cuts = []
    for k in range(min(CUTS, len(seeds))):
        seed = seeds[(first + k * 7) % len(seeds)]
        count = min(n + k % 2, seed.size)
        strided = k % 3 == 2 and seed.size % count == 0
        cuts.append(Cut(seed, count, strided, k % 4 > 1, (0, 8, 128)[k % 5 % 3]))
    return cuts


@pytest.mark.slow
def test_a_program_in_pieces_has_the_same_values() -> None:
    """Each cut of a random program gives the values of the whole program, or is refused."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=-(-EXAMPLES // CUTS),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(codes(), st.integers(0, 1000), st.integers(2, 5))
    def check(code: Code, first: int, n: int) -> None:
        args = arguments(code)
        closed = jax.make_jaxpr(function(code))(args)
        values = flat(args)
        expected = evaluate(closed, values)
        for cut in cuts_of(closed, first, n):
            outcomes[outcome_of(closed, values, expected, cut)] += 1

    check()
    print(dict(outcomes))
    # The property is not kept by refusing everything.
    assert outcomes["in pieces"] + outcomes["made whole"] > outcomes["refused"] / 4
