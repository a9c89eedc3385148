"""The `with` form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import PETABYTE, SIDE, SMALL, fill


def test_a_block_explains_what_fails_where_the_user_waits(tmp_path: Path) -> None:
    """An OOM at block_until_ready inside a `with` block has the peak of the program that failed."""
    step = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))

    with pytest.raises(HbmOomError) as caught, watch_hbm(tmp_path) as watch:
        jax.block_until_ready(step(SMALL))

    assert watch.report is caught.value.report
    assert watch.report.function == ""
    assert caught.value.summary is not None
    assert caught.value.summary.module.rstrip("_") == "jit__lambda"
    assert caught.value.summary.peak_bytes >= PETABYTE


def test_a_block_that_succeeds_has_no_report() -> None:
    """A `with` block in which nothing fails leaves `report` None."""
    with watch_hbm() as watch:
        jax.jit(jnp.sin)(SMALL)

    assert watch.report is None


def test_a_context_keeps_its_last_report(tmp_path: Path) -> None:
    """An unrelated error in a later block leaves the report of the earlier one."""
    watch = watch_hbm(tmp_path)
    with pytest.raises(HbmOomError), watch:
        jax.block_until_ready(jax.jit(fill)(SMALL))
    report = watch.report
    with pytest.raises(KeyError), watch:
        raise KeyError

    assert report is not None
    assert watch.report is report


def test_a_switch_that_becomes_wrong_inside_a_block_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The switch is read where the block begins, and nothing replaces the user's error."""
    with pytest.raises(ZeroDivisionError), watch_hbm():
        monkeypatch.setenv("HBMWATCH_DISABLE", "maybe")
        raise ZeroDivisionError

    with pytest.raises(ValueError, match="'maybe'"), watch_hbm():
        raise ZeroDivisionError


UNUSABLE: dict[str, dict[str, Any]] = {
    "donate_argnums": {"donate_argnums": 0},
    "capture='always'": {"capture": "always"},
    "jit=False": {"jit": False},
    "keep_unused, capture='always', jit=False": {
        "keep_unused": True,
        "capture": "always",
        "jit": False,
    },
}


@pytest.mark.parametrize("names", UNUSABLE)
def test_what_a_block_cannot_use_is_an_error(names: str, tmp_path: Path) -> None:
    """Arguments that apply to a decorated function alone are refused where the block begins."""
    with pytest.raises(TypeError) as caught, watch_hbm(tmp_path, **UNUSABLE[names]):
        pass

    assert str(caught.value) == (
        f"a `with` block cannot use {names}: these apply to a function that watch_hbm decorates"
    )


def test_a_block_can_report_from_the_message_alone(tmp_path: Path) -> None:
    """capture="never" and top apply to a block as well."""
    with pytest.raises(HbmOomError) as caught, watch_hbm(tmp_path, capture="never", top=3):
        jax.block_until_ready(jax.jit(fill)(SMALL))

    assert caught.value.summary is None
    assert caught.value.message.requested_bytes == PETABYTE
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_block_waits_for_what_was_made_in_it() -> None:
    """What was dispatched inside fails there, with its report; the result need not be used."""
    step = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))

    with pytest.raises(HbmOomError) as caught, watch_hbm() as watch:
        kept = step(SMALL)

    assert watch.report is caught.value.report
    assert caught.value.summary is not None
    assert caught.value.summary.peak_bytes >= PETABYTE
    with pytest.raises(jax.errors.JaxRuntimeError):
        kept.block_until_ready()


def test_a_block_does_not_wait_for_arrays_from_before() -> None:
    """A poisoned array that exists already is not the block's failure."""
    poisoned = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))(SMALL)

    with watch_hbm() as watch:
        made = jnp.sin(SMALL)

    assert watch.report is None
    assert float(made[0]) == pytest.approx(0.8414709)
    with pytest.raises(jax.errors.JaxRuntimeError):
        poisoned.block_until_ready()


def test_a_block_that_never_waits_does_not_fail() -> None:
    """With sync="never" the failure appears where the user waits."""
    step = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))

    with watch_hbm(sync="never") as watch:
        kept = step(SMALL)

    assert watch.report is None
    with pytest.raises(jax.errors.JaxRuntimeError):
        kept.block_until_ready()


KEPT: list[jax.Array] = []
LATE = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))


def except_clause() -> None:
    with watch_hbm():
        try:
            KEPT.append(LATE(SMALL))
            KEPT[-1].block_until_ready()
        except (KeyError, jax.errors.JaxRuntimeError):
            pass


def bare_except() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch_hbm())
        try:
            KEPT.append(LATE(SMALL))
            KEPT[-1].block_until_ready()
        except:  # noqa: E722
            pass


def suppressed() -> None:
    with watch_hbm():
        with contextlib.suppress(Exception):
            KEPT.append(LATE(SMALL))
            KEPT[-1].block_until_ready()


def another_error() -> None:
    with watch_hbm():
        try:
            KEPT.append(LATE(SMALL))
        except (KeyError, HbmOomError):
            pass


def raised_again() -> None:
    with watch_hbm():
        try:
            KEPT.append(LATE(SMALL))
        except Exception:
            KEPT.clear()
            raise


def around_the_block() -> None:
    try:
        with watch_hbm():
            KEPT.append(LATE(SMALL))
    except KeyError:
        pass


HANDLED = {
    except_clause: True,
    bare_except: True,
    suppressed: True,
    another_error: False,
    raised_again: False,
    around_the_block: False,
}


@pytest.mark.parametrize("block", HANDLED)
def test_what_the_block_has_handled_is_not_raised_at_its_end(block: Callable[[], None]) -> None:
    """Where the body catches the error, it may have handled it, also if it keeps the array."""
    expected = contextlib.nullcontext() if HANDLED[block] else pytest.raises(HbmOomError)
    with expected:
        block()

    assert KEPT
    with pytest.raises(jax.errors.JaxRuntimeError):
        KEPT.pop().block_until_ready()
