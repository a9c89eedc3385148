"""The command plan, on a module in the working folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import run

MODEL = """
import jax
import jax.numpy as jnp

def step(x):
    return x + 1

def args_of(n):
    return (jax.ShapeDtypeStruct((n, 512, 512), jnp.float32),)
"""
STEP = ("plan_model:step", "--args", "plan_model:args_of")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module `plan_model`, as the working folder."""
    (tmp_path / "plan_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("plan_model", None)


@pytest.mark.slow
def test_plan_prints_what_to_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The changes that fit, as text and as JSON; the page shows both curves."""
    arguments = ("plan", *STEP, "--size", "2", "--limit", "3MiB", "--html", "plan.html")
    status, out, _ = run(capsys, *arguments)
    lines = out.splitlines()

    assert status == 0
    assert lines[0].startswith("unchanged step: does not fit cpu: needs 4 MiB")
    assert lines[1].startswith(
        "  1. (best) donation [A: the same values, no recomputation]: fits cpu: needs 2 MiB"
    )
    donation = "jax.jit(step, donate_argnames='x'), and use only the returned values afterwards"
    assert lines[2] == f"     write: {donation}"
    page = (folder / "plan.html").read_text()
    assert page.startswith("<!doctype html>")
    curves = [page.count(f'<polyline class="{name}"') for name in ("before", "after", "limit")]
    assert curves == [1, 1, 1]

    status, out, _ = run(capsys, *arguments, "--json")
    assert (status, json.loads(out)["rows"][0]["changes"]) == (0, ["donation"])


@pytest.mark.slow
def test_plan_says_by_its_status_that_nothing_fits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit below the argument itself: the status is 1."""
    status, out, _ = run(capsys, "plan", *STEP, "--size", "2", "--limit", "1KiB")

    assert status == 1
    assert "none makes the step fit" in out


def test_plan_takes_one_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two targets are refused in one sentence."""
    status, _, err = run(capsys, "plan", *STEP, "--on", "v5e,h100")

    assert (status, err) == (3, "hbmwatch: plan takes one target: run it once for each device\n")
