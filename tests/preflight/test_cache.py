"""Verdicts that were reached before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Fit
from hbmwatch._preflight import cache

MIB = 2**20
X = jax.ShapeDtypeStruct((1, 512, 512), jnp.float32)


def add_one(x: Any) -> Any:
    """A small step."""
    return x + 1


def asked(folder: Path | None, x: Any = X, limit_bytes: int = 4 * MIB) -> Fit:
    """The verdict on the step."""
    return cache.cached_fit(add_one, (x,), {}, on=None, folder=folder, limit_bytes=limit_bytes)


@pytest.mark.slow
def test_an_unchanged_step_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second verdict is the first one, and costs no compiler."""
    folder = tmp_path / "cache"
    first = asked(folder)
    jax.clear_caches()
    monkeypatch.setattr(cache, "compile_request_for", None)
    second = asked(folder)

    assert (first.fits, first.cpu_seconds > 0, second.cpu_seconds) == (True, True, 0.0)
    assert (second.report, second.total_bytes) == (first.report, first.total_bytes)
    with pytest.raises(TypeError):
        asked(folder, jax.ShapeDtypeStruct((2, 512, 512), jnp.float32))
    with pytest.raises(TypeError):
        asked(folder, limit_bytes=5 * MIB)
    with pytest.raises(TypeError):
        asked(None)


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"schema": 1}', '{"schema": 1, "report": null}']
)
def test_a_damaged_verdict_is_none(text: str, tmp_path: Path) -> None:
    """As if there were no file."""
    file = tmp_path / "verdict.json"
    file.write_text(text)

    assert cache._load(file) is None


@pytest.mark.slow
def test_a_damaged_verdict_is_written_again(tmp_path: Path) -> None:
    """The step is compiled again."""
    asked(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text("{")

    assert asked(tmp_path).fits
    assert Fit.from_dict(json.loads(file.read_text())).fits
