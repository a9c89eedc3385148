"""The largest size that fits, by real compilers and by curves that stand for them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Fit, OomReport, largest
from hbmwatch._preflight.largest import Tries, found
from hbmwatch._records.message import OomMessage

MIB = 2**20
LIMIT = 16126 * MIB


def scaled(x: Any) -> Any:
    """A step whose memory grows evenly with its argument."""
    return x * 2


def rows(n: int) -> tuple[Any, ...]:
    """So many rows of 1 MiB, twice: argument and output."""
    return (jax.ShapeDtypeStruct((n, 512, 512), jnp.float32),)


@pytest.mark.slow
@pytest.mark.tpu
def test_on_a_tpu_both_ends_are_proved_by_its_compiler() -> None:
    """16126 MiB hold 8062 rows of 2 MiB with their code, and the compiler refuses 8063."""
    result = largest(scaled, rows, on="v5e", start=8000)

    assert (result.size, result.next_size, result.proof) == (8062, 8063, "compiled")
    assert result.fit.fits
    assert result.fit is result.tried[8062]
    assert result.tried[8063].fits is False
    assert result.monotone
    assert str(result).startswith(
        "8062 is the largest size found that fits v5e. 8062 fits (compiled,"
    )
    assert json.loads(json.dumps(result.to_dict()))["size"] == 8062


@pytest.mark.slow
def test_a_limit_of_ones_own_and_multiples() -> None:
    """On the CPU, which has no limit: 10 MiB hold 5 rows, and 4 as a multiple of 2."""
    tried: list[int] = []
    result = largest(
        scaled, rows, multiple_of=2, limit_bytes=10 * MIB, on_try=lambda n, fit: tried.append(n)
    )

    assert (result.size, result.next_size) == (4, 6)
    assert set(tried) == set(result.tried)
    assert str(result).startswith("4 is the largest multiple of 2 found that fits cpu.")


@pytest.mark.slow
def test_symbolic_dimensions_stand_for_the_size() -> None:
    """A shape with one symbolic dimension is a function of the size."""
    (b,) = jax.export.symbolic_shape("b")
    args = (jax.ShapeDtypeStruct((2 * b, 512, 512), jnp.float32),)
    result = largest(scaled, args, at_most=3, proof="assigned", limit_bytes=9 * MIB)

    assert (result.size, result.next_size) == (2, 3)
    assert result.tried[2].total_bytes == 8 * MIB


def test_what_cannot_be_searched_is_refused() -> None:
    """No symbolic dimension, no tuple, no size below at_most."""
    with pytest.raises(TypeError, match="one symbolic dimension"):
        largest(scaled, rows(4), limit_bytes=MIB)
    with pytest.raises(TypeError, match=r"args_of\(1\) returned ShapeDtypeStruct, not a tuple"):
        largest(scaled, lambda n: rows(n)[0], limit_bytes=MIB)
    with pytest.raises(ValueError, match="no multiple of 8 is at most 4"):
        largest(scaled, rows, multiple_of=8, at_most=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"multiple_of": 0}, "multiple_of must be a whole number above 0, not 0"),
        ({"multiple_of": 1.5}, "multiple_of must be a whole number above 0, not 1.5"),
        ({"start": 0}, "start must be a whole number above 0, not 0"),
        ({"at_most": -1}, "at_most must be a whole number above 0, not -1"),
        ({"proof": "complied"}, "proof must be 'compiled' or 'assigned', not 'complied'"),
        ({"limit_bytes": -1}, "limit_bytes must be a whole number of bytes above 0, not -1"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options: dict[str, Any], said: str) -> None:
    """Before anything is compiled, and not taken for another one."""
    with pytest.raises(ValueError) as caught:
        largest(scaled, rows, **options)
    assert str(caught.value) == said


# --- what the answer rests on ---------------------------------------------------------------------


def compiler(total_of: Callable[[int], int], code: int = 0) -> Callable[[int, str], Fit]:
    """A compiler that checks twice, as libtpu does: the total, and the total with the code."""

    def ask(size: int, proof: str) -> Fit:
        total = total_of(size)
        fit = Fit(True, total, total, LIMIT, "v5e", "assigned", OomReport(OomMessage("")))
        if total >= LIMIT:
            return dataclasses.replace(fit, fits=False, proof="compiled", error="refused")
        if proof == "assigned":
            return fit
        if total + code < LIMIT:
            return dataclasses.replace(fit, proof="compiled", code_bytes=code)
        return dataclasses.replace(fit, fits=False, proof="compiled", code_bytes=code)

    return ask


def test_the_code_may_take_what_the_assignment_left() -> None:
    """Where the answer by assignment is refused with its code, the search goes on below."""
    tries = Tries(compiler(lambda n: n * MIB, code=int(5.5 * MIB)), 1, None)
    result = found(tries, LIMIT, True, 1, None, "compiled")

    assert (result.size, result.next_size, result.proof) == (16120, 16121, "compiled")
    assert [result.tried[n].proof for n in (16120, 16121)] == ["compiled", "compiled"]
    compiled = [n for n, fit in result.tried.items() if fit.proof == "compiled" and n < 16126]
    assert compiled == [16125, 16120, 16121]


def test_by_assignment_nothing_is_called_compiled() -> None:
    """Without the proof the answer is that of the assignment, and says so."""
    tries = Tries(compiler(lambda n: n * MIB, code=5 * MIB), 1, None)
    result = found(tries, LIMIT, True, 1, None, "assigned")

    assert (result.size, result.proof, result.fit.proof) == (16125, "assigned", "assigned")
    assert "16125 fits (from the buffer assignment, 1 MiB left)" in str(result)


def sawtooth(n: int) -> int:
    """Memory that falls by a fifth at 8,800, as where XLA rematerializes."""
    return n * 2 * MIB * (5 if n < 8800 else 4) // 5


def test_a_sawtooth_keeps_the_promise_and_is_reported() -> None:
    """A larger size that fits again is looked for, and what is found is proved all the same."""
    tries = Tries(compiler(sawtooth), 1, None)
    result = found(tries, LIMIT, False, 1, None, "compiled")

    assert (result.size, result.next_size, result.proof) == (10078, 10079, "compiled")
    assert not result.monotone
    assert "does not fit, although the larger size 10078 fits" in str(result)


def test_a_try_without_a_verdict_ends_the_search() -> None:
    """A compiler that hangs or dies is a sentence, and what was found until then stays."""

    def ask(size: int, proof: str) -> Fit:
        fit = compiler(lambda n: n * MIB)(size, proof)
        return fit if size < 3 else dataclasses.replace(fit, fits=None, error="still compiling")

    result = found(Tries(ask, 1, None), LIMIT, True, 1, None, "compiled")

    assert (result.size, result.next_size, result.proof) == (2, None, "assigned")
    assert "still compiling" in result.error
    assert "The search ended early" in str(result)


def test_an_exception_of_the_users_code_has_what_was_tried_before() -> None:
    """As a note, so that the verdicts until then are not lost."""

    def ask(size: int, proof: str) -> Fit:
        if size > 2:
            raise ZeroDivisionError("the user's own")
        return compiler(lambda n: n * MIB)(size, proof)

    with pytest.raises(ZeroDivisionError, match="^the user's own") as caught:
        found(Tries(ask, 1, None), None, True, 1, None, "assigned")
    assert caught.value.__notes__ == [
        "hbmwatch tried 4, and before it:\n"
        "  1 fits v5e: needs 1 MiB; 15.75 GiB available; 15.75 GiB left; from the buffer "
        "assignment; the size of the code is not included\n"
        "  2 fits v5e: needs 2 MiB; 15.75 GiB available; 15.75 GiB left; from the buffer "
        "assignment; the size of the code is not included"
    ]
    with pytest.raises(ZeroDivisionError) as caught:
        largest(scaled, lambda n: (n // 0,), limit_bytes=MIB)
    assert caught.value.__notes__ == ["hbmwatch tried 1, and before it no other size"]


def test_where_nothing_fits_the_smallest_is_the_verdict() -> None:
    """If even the smallest size does not fit, size is None, and fit says why."""
    result = found(Tries(compiler(lambda n: LIMIT + n), 8, None), LIMIT, True, 1, None, "compiled")

    assert (result.size, result.next_size, result.fit.fits) == (None, 8, False)
    assert str(result).startswith("Even 8 does not fit v5e: ")
    assert str(result).count(" not fit") == 1


def test_without_any_verdict_there_is_an_answer_that_says_so() -> None:
    """No exception that nobody knows, and no claim that a size does not fit."""

    def ask(size: int, proof: str) -> Fit:
        fit = compiler(lambda n: n * MIB)(size, proof)
        return dataclasses.replace(fit, fits=None, error="no limit is known for cpu")

    result = found(Tries(ask, 8, None), None, False, 1, None, "compiled")

    assert (result.size, result.next_size, result.tried, result.fit.fits) == (None, None, {}, None)
    assert str(result) == (
        "No size that fits v5e was found. The search ended early: 8: no limit is known for cpu."
    )


@pytest.mark.parametrize("total_of", [lambda n: 64 * MIB, lambda n: 64 * MIB + 2**30 // n])
def test_a_search_ends_where_memory_does_not_grow(total_of: Callable[[int], int]) -> None:
    """As where args_of ignores the size; the largest size that was tried is the answer."""
    result = found(Tries(compiler(total_of), 1, None), LIMIT, True, 1, None, "assigned")

    assert result.size is not None and result.next_size is None
    assert "take no more memory than much smaller ones" in result.error

    bounded = found(Tries(compiler(total_of), 1, None), LIMIT, True, 1, 10**6, "assigned")
    assert (bounded.size, bounded.next_size, bounded.error) == (10**6, None, "")
    assert str(bounded).startswith("1000000 is the largest size that was tried, and it fits v5e (")
