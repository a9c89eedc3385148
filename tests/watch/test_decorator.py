"""The arguments of watch_hbm, and the switch that disables it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import SMALL, fill


def generator() -> Any:
    """A generator function."""
    yield 1


async def coroutine() -> None:
    """A coroutine function."""


MISUSES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "misspelt keyword": (
        lambda: watch_hbm(donate_argnum=0),
        TypeError,
        "neither watch_hbm nor jax.jit has a keyword 'donate_argnum'",
    ),
    "jit keyword for a jitted function": (
        lambda: watch_hbm(jax.jit(fill), donate_argnums=0),
        TypeError,
        "fill is already jitted, so 'donate_argnums' would have no effect",
    ),
    "jit keyword with jit=False": (
        lambda: watch_hbm(fill, jit=False, donate_argnums=0),
        TypeError,
        "fill is not jitted with jit=False, so 'donate_argnums' would have no effect",
    ),
    "generator": (lambda: watch_hbm(generator), TypeError, "`with watch_hbm"),
    "coroutine": (lambda: watch_hbm(coroutine), TypeError, "`with watch_hbm"),
    "no function": (
        lambda: watch_hbm(3),  # type: ignore[call-overload]
        TypeError,
        "a function or a folder, not int",
    ),
    "two folders": (
        lambda: watch_hbm("a", logdir="b"),
        TypeError,
        "logdir was given twice, by position and by keyword",
    ),
    "capture": (
        lambda: watch_hbm(capture="sometimes"),  # type: ignore[call-overload]
        ValueError,
        "capture='sometimes': choose one of on_oom, always, never",
    ),
    "sync": (
        lambda: watch_hbm(sync=True),  # type: ignore[call-overload]
        ValueError,
        "sync=True: choose one of",
    ),
    "top": (lambda: watch_hbm(top=-1), ValueError, "top must be at least 0, not -1"),
    "the function as a keyword": (
        lambda: watch_hbm(fun=fill),
        TypeError,
        "pass the function by position: watch_hbm(step, ...), not watch_hbm(fun=step, ...)",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_fails_where_it_is_written(misuse: str) -> None:
    """Wrong arguments are refused at decoration, in one sentence."""
    use, kind, text = MISUSES[misuse]

    with pytest.raises(kind) as caught:
        use()

    assert text in str(caught.value)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_disabled_it_is_a_plain_jit(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With HBMWATCH_DISABLE set, a watched function is jax.jit's own, and a block does nothing."""
    monkeypatch.setenv("HBMWATCH_DISABLE", value)
    jitted = jax.jit(fill)

    assert isinstance(watch_hbm(fill, donate_argnums=0), type(jitted))
    assert id(watch_hbm(jitted)) == id(jitted)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught, watch_hbm() as block:
        jax.block_until_ready(jitted(SMALL))
    assert not isinstance(caught.value, HbmOomError)
    assert block.report is None


def test_a_misspelt_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """HBMWATCH_DISABLE is strictly parsed."""
    monkeypatch.setenv("HBMWATCH_DISABLE", "ture")

    with pytest.raises(ValueError, match="'ture' is neither true nor false"):
        watch_hbm(fill)
