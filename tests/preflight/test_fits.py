"""Whether a step fits, by the real compilers of devices that are not there."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import PeakOp, fits, verify
from hbmwatch._preflight.assigned import Compiled
from hbmwatch._preflight.fits import fit_of
from hbmwatch._preflight.targets import Target
from tests.preflight import steps
from tests.preflight.test_budget import summary

MIB, GIB = 2**20, 2**30


def add_one(x: Any) -> Any:
    """The smallest step whose output is as large as its argument."""
    return x + 1


def x_of(mib: int) -> jax.ShapeDtypeStruct:
    """An argument of a number of MiB."""
    return jax.ShapeDtypeStruct((mib, 512, 512), jnp.float32)


@pytest.mark.tpu
def test_what_fits_a_tpu_has_its_peak_and_what_is_left() -> None:
    """A step that fits is accepted to the end, and says what it needs and leaves."""
    fit = fits(add_one, x_of(64), on="v5e")

    assert (fit.fits, fit.proof, fit.target) == (True, "compiled", "v5e")
    assert fit.total_bytes == pytest.approx(128 * MIB, abs=MIB)
    assert fit.limit_bytes == 16126 * MIB
    assert fit.code_bytes is not None and fit.total_bytes is not None
    assert fit.left_bytes == fit.limit_bytes - fit.total_bytes - fit.code_bytes
    assert fit.report.summary is not None
    assert fit.report.summary.peak_bytes == fit.peak_bytes
    assert str(fit).startswith("fits v5e: needs 128")


@pytest.mark.tpu
def test_what_does_not_fit_a_tpu_is_refused_by_its_compiler() -> None:
    """The compiler's refusal is final, and its report has peak and message."""
    fit = fits(add_one, x_of(50 * 1024), on="v5e")

    assert (fit.fits, fit.proof) == (False, "compiled")
    assert fit.total_bytes == pytest.approx(100 * GIB, abs=MIB)
    assert fit.report.message.phase == "compile"
    assert str(fit).startswith("does not fit v5e: needs 100")
    assert json.loads(json.dumps(fit.to_dict()))["fits"] is False


@pytest.mark.slow
@pytest.mark.tpu
def test_a_compile_of_a_minute_is_stopped_at_the_buffer_assignment() -> None:
    """The proof says so, and so does the text; the code is not known yet."""
    step, args_of = steps.mlp()
    fit = fits(step, *args_of(1024), on="v5e", proof="assigned")

    assert (fit.fits, fit.proof, fit.code_bytes) == (True, "assigned", None)
    assert str(fit).endswith("; from the buffer assignment; the size of the code is not included")


@pytest.mark.gpu
def test_a_gpus_limit_is_assumed() -> None:
    """A GPU compiler takes everything: the limit is a share of the card, and is called assumed."""
    fit = fits(add_one, x_of(64), on="h100", proof="assigned", memory_fraction=0.5)

    assert (fit.fits, fit.limit_bytes) == (True, 84929347584 // 2)
    assert "assumed: 0.5 of the card's memory" in str(fit)


@pytest.mark.slow
def test_without_a_target_it_is_the_default_device() -> None:
    """On the CPU nothing says what fits; with a limit it is decided."""
    unknown = fits(add_one, x_of(1))
    assert (unknown.fits, unknown.target) == (None, "cpu")
    assert unknown.total_bytes == 2 * MIB
    assert "the memory limit of cpu is unknown; pass limit_bytes; needs 2 MiB" in str(unknown)

    assert not unknown
    for limit, expected in ((2 * MIB, True), (2 * MIB - 1, False)):
        fit = fits(add_one, x_of(1), limit_bytes=limit)
        assert (fit.fits, bool(fit)) == (expected, expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit_bytes": 0}, "limit_bytes must be a whole number of bytes above 0, not 0"),
        ({"limit_bytes": 1.5}, "limit_bytes must be a whole number of bytes above 0, not 1.5"),
        ({"limit_bytes": True}, "limit_bytes must be a whole number of bytes above 0, not True"),
        (
            {"limit_bytes": "14GiB"},
            "limit_bytes must be a whole number of bytes above 0, not '14GiB'",
        ),
        ({"timeout_s": -1}, "timeout_s must be a number of seconds, 0 or more, not -1"),
        ({"timeout_s": float("nan")}, "timeout_s must be a number of seconds, 0 or more, not nan"),
        (
            {"memory_fraction": "0.5"},
            "memory_fraction must be a number above 0 and at most 1, not '0.5'",
        ),
        ({"timeout_s": None}, "timeout_s must be a number of seconds, 0 or more, not None"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options: dict[str, Any], said: str) -> None:
    """By fits and verify alike, before a compiler starts."""
    verifies: list[Any] = (
        [] if "memory_fraction" in options else [functools.partial(verify, change="bfloat16")]
    )
    for ask in (fits, *verifies):
        with pytest.raises(ValueError) as caught:
            ask(jax.jit(add_one), x_of(1), **options)
        assert str(caught.value) == said


@pytest.mark.slow
@pytest.mark.tpu
def test_a_limit_above_the_devices_own_does_not_hide_it() -> None:
    """What the compiler refuses is over the device's limit, not under the one that was given."""
    fit = fits(add_one, x_of(10 * 1024), on="v5e", proof="assigned", limit_bytes=2**40)

    assert (fit.fits, fit.limit_bytes) == (False, 16126 * MIB)
    assert fit.left_bytes is not None and fit.left_bytes < 0
    assert "4.25 GiB over the limit" in str(fit)


@pytest.mark.parametrize(
    ("note", "limit_bytes", "expected"),
    [
        ("", None, (True, 4 * MIB)),
        ("", 8 * MIB, (True, 8 * MIB)),
        ("", 2 * MIB, (False, 2 * MIB)),
        ("measured with another libtpu", None, (False, 4 * MIB)),
        ("measured with another libtpu", 8 * MIB, (False, 4 * MIB)),
        ("measured with another libtpu", 2 * MIB, (False, 2 * MIB)),
    ],
)
def test_a_libtpu_that_was_not_measured_may_check_less_than_the_limit(
    note: str, limit_bytes: int | None, expected: tuple[bool, int]
) -> None:
    """It accepted 6 MiB: if its limit is known, that is the verdict, and otherwise the limit is."""
    accepted = Compiled(True, "compiled", summary=summary(PeakOp("add", size_bytes=6 * MIB)))
    fit = fit_of(None, Target("v5e", "tpu", 1, 4 * MIB, note), accepted, limit_bytes)

    assert (fit.fits, fit.limit_bytes) == expected


def test_a_step_may_have_any_name() -> None:
    """Also one that no file can have: its memory is found all the same."""

    def step(x: Any) -> Any:
        return x + 1

    step.__name__ = "größe/a b" + "x" * 400
    fit = fits(step, x_of(1), limit_bytes=2 * MIB, proof="assigned")

    assert (fit.fits, fit.total_bytes) == (True, 2 * MIB)
