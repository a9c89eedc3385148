"""The commands fits, largest and budget, on a module in the working folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hbmwatch import Fit
from tests.cli.support import run

MODEL = """
import jax
import jax.numpy as jnp

def step(x):
    return x + 1

def args_of(n):
    return (jax.ShapeDtypeStruct((n, 512, 512), jnp.float32),)

ARGS = args_of(2)
NUMBER = 7
"""
MIB = 2**20


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module `preflight_model`, as the working folder."""
    (tmp_path / "preflight_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("preflight_model", None)


STEP = ("preflight_model:step", "--args", "preflight_model:args_of")


def test_fits_prints_a_verdict_and_the_report(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is the verdict, and --html writes the page."""
    arguments = (*STEP, "--size", "2", "--limit", "4MiB", "--html", "page.html")
    status, out, _ = run(capsys, "fits", *arguments)

    assert status == 0
    assert out.startswith(
        "cpu  fits cpu: needs 4 MiB; 4 MiB available; 0 B left; compiled\n\nhbmwatch:"
    )
    assert (model / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_fits_says_what_does_not_fit_as_json(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list with one verdict per target; the arguments are a value, not a function of the size."""
    arguments = ("preflight_model:step", "--args", "preflight_model:ARGS", "--limit", "1MiB")
    status, out, _ = run(capsys, "fits", *arguments, "--json")
    (fit,) = map(Fit.from_dict, json.loads(out))

    assert (status, fit.fits, fit.total_bytes) == (1, False, 4 * MIB)


@pytest.mark.slow
@pytest.mark.tpu
def test_fits_shows_several_targets_as_a_table(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each target, the names aligned, and no report."""
    arguments = (*STEP, "--size", "2", "--on", "v5e,v5e:2x2", "--proof", "assigned")
    status, out, _ = run(capsys, "fits", *arguments)

    assert status == 0
    assert [line[:18] for line in out.splitlines()] == ["v5e      fits v5e:", "v5e:2x2  fits v5e:"]


@pytest.mark.slow
def test_largest_prints_the_size(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence, and the same as JSON."""
    arguments = ("largest", *STEP, "--limit", "5MiB", "--proof", "assigned", "--start", "2")
    status, out, _ = run(capsys, *arguments)
    assert (status, out.splitlines()[0][:47]) == (
        0,
        "2 is the largest size found that fits cpu. 2 fi",
    )

    _, out, _ = run(capsys, *arguments, "--json")
    (found,) = json.loads(out)
    assert (found["size"], found["next_size"]) == (2, 3)


def test_an_error_of_largest_shows_what_was_tried(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the sentence."""
    arguments = ("preflight_model:step", "--args", "preflight_model:step", "--limit", "1MiB")
    status, _, err = run(capsys, "largest", *arguments)

    assert (status, err.splitlines()) == (
        3,
        [
            "hbmwatch tried 1, and before it no other size",
            "hbmwatch: args_of(1) returned int, not a tuple of arguments",
        ],
    )


@pytest.mark.slow
def test_a_budget_fails_where_a_step_grew(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stored, as before, grown by more than was allowed, and the line that grew."""
    budget = ("budget", "--baseline", "hbm.json", "--cache", "cache")
    status, out, err = run(capsys, *budget)
    assert (status, err) == (
        3,
        "hbmwatch: hbm.json has no steps: add one with MODULE:STEP and --update\n",
    )

    # No limit is known for the CPU, so only growth counts.
    status, out, _ = run(capsys, *budget, *STEP, "--size", "2", "--update")
    assert (status, out) == (
        0,
        "step(2) is new: peak 4 MiB on cpu; the memory limit of cpu is unknown, "
        "only growth counts\n",
    )

    grown = MODEL.replace("x + 1", "jnp.tile(x, 2)")
    sys.modules.pop("preflight_model")
    (model / "preflight_model.py").write_text(grown)
    status, out, _ = run(capsys, *budget, "--fail-on-increase", "1%")
    assert (status, out.partition(" (")[0]) == (1, "step(2) on cpu: peak 4 MiB -> 6 MiB")
    assert "preflight_model.py:6" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fits", "nowhere:step"), "cannot load nowhere:step: No module named 'nowhere'"),
        (("fits", "preflight_model"), "'preflight_model' does not name an object in a module"),
        (("fits", *STEP[:2], "preflight_model:NUMBER"), "gives int, not a tuple of arguments"),
        (("fits", *STEP, "--size", "1", "--on", "v99"), "unknown target 'v99'"),
        (("fits", *STEP), "preflight_model:args_of needs an argument: pass --size N"),
        (("fits", STEP[0]), "preflight_model:step needs arguments: pass --args MODULE:ARGS"),
        (("plan", STEP[0]), "preflight_model:step needs arguments: pass --args MODULE:ARGS"),
        (
            ("plan", *STEP, "--size", "2"),
            "the memory limit of cpu is unknown; pass --on v5e or --limit SIZE",
        ),
        (
            ("fits", "./pkg/model.py:step"),
            "./pkg/model.py is a file, not a module: write pkg.model:step",
        ),
        (
            ("fits", *STEP[:2], "preflight_model:ARGS", "--size", "2"),
            "--size needs a function, and preflight_model:ARGS is tuple",
        ),
        (("largest", STEP[0]), "largest needs --args: a function that takes the size"),
        (
            ("budget", "--baseline", "b.json", "--fail-on-increase", "much"),
            "'much' is not a size",
        ),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    model: Path,
    arguments: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On stderr, with status 3."""
    status, _, err = run(capsys, *arguments)

    assert status == 3
    assert said in err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def step(:", "user_model:step raised SyntaxError: "),
        ("import sys; sys.exit(1)", "user_model:step raised SystemExit: 1"),
        ("def step():\n    raise KeyError('mine')", "user_model:step raised KeyError: 'mine'"),
        ("def step():\n    raise ValueError('mine')", "user_model:step raised ValueError: mine"),
        ("def step():\n    assert False", "user_model:step raised AssertionError"),
    ],
)
def test_an_error_of_the_users_code_is_no_verdict(
    source: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its traceback is shown, and the status is 3: 1 would say that the step does not fit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "user_model", raising=False)
    (tmp_path / "user_model.py").write_text(source)
    status, out, err = run(capsys, "fits", "user_model:step")

    assert (status, out) == (3, "")
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith(f"hbmwatch: {said}")
