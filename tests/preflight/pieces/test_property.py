"""Random programs give the same values in pieces, wherever they are cut."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbmwatch._preflight import pieces
from tests.preflight.pieces.evaluate import evaluate
from tests.preflight.pieces.grammar import Code, arguments, codes, function

EXAMPLES = int(os.environ.get("HBMWATCH_PIECES_EXAMPLES", "60"))
CUTS = 6
OUTCOMES: Counter[str] = Counter()


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


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=EXAMPLES <= 60,
    database=None,
)
@given(codes(), st.integers(0, 1000), st.integers(2, 5))
def test_a_program_in_pieces_has_the_same_values(code: Code, which: int, n: int) -> None:
    """Each seed, contiguous and strided, gives the values of the whole program or is refused."""
    args = arguments(code)
    closed = jax.make_jaxpr(function(code))(args)
    values = flat(args)
    expected = evaluate(closed, values)
    seeds = pieces.seeds(closed, most=1000)
    for k in range(min(CUTS, len(seeds))):
        seed = seeds[(which + k * 7) % len(seeds)]
        count = min(n + k % 2, seed.size)
        strided = bool(k % 3 == 2 and seed.size % count == 0)
        try:
            rewritten = pieces.rewrite(closed, seed, count, strided=strided)
        except pieces.Refused:
            OUTCOMES["refused"] += 1
            continue
        OUTCOMES["one stage" if rewritten.stages == 1 else "more stages"] += 1
        OUTCOMES["something made whole"] += bool(rewritten.reasons)
        actual = evaluate(rewritten.jaxpr, values)
        found = [differ(*pair) for pair in zip(expected, actual, strict=True)]
        assert not any(found), (seed, count, strided, found)
        assert [a.weak_type for a in rewritten.jaxpr.out_avals] == [
            a.weak_type for a in closed.out_avals
        ]


def test_most_programs_run_in_pieces() -> None:
    """The property above is not kept by refusing everything."""
    ran = OUTCOMES["one stage"] + OUTCOMES["more stages"]

    assert ran > OUTCOMES["refused"]
