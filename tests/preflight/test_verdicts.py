"""Verdicts as JSON: whatever a file holds, it is a verdict or a ValueError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import Fit, Largest
from hbmwatch._preflight.budget import Budgeted, Entry, load_baseline, save_baseline
from tests.preflight.test_budget import BEFORE

FIT = BEFORE.to_dict()
OTHERS: tuple[Any, ...] = (None, True, 1, 1.5, "1", [], [1], {}, {"schema": 1})


def read(values: Mapping[str, Any]) -> Fit | None:
    """The verdict; None where the values are refused with a sentence."""
    try:
        return Fit.from_dict(values)
    except ValueError as error:
        assert str(error)
        return None


def test_a_verdict_is_read_as_it_was_written() -> None:
    """Through JSON, and with fields that a later version has added."""
    assert Fit.from_dict(json.loads(json.dumps({**FIT, "of_a_later_version": 1}))) == BEFORE


@pytest.mark.parametrize("name", FIT)
def test_a_field_of_another_type_is_refused(name: str) -> None:
    """What is not refused can be shown and compared."""
    without = {key: value for key, value in FIT.items() if key != name}
    changed = [without, *({**FIT, name: other} for other in OTHERS)]
    verdicts = [fit for values in changed if (fit := read(values)) is not None]

    for fit in verdicts:
        assert str(fit)
        assert str(Budgeted("step", BEFORE, fit)) and str(Budgeted("step", fit, BEFORE))
    assert name == "left_bytes" or len(verdicts) < len(changed)


def test_an_error_names_the_field() -> None:
    """And what it holds."""
    with pytest.raises(ValueError, match="^the verdict.peak_bytes is '6 GiB', not an int$"):
        Fit.from_dict({**FIT, "peak_bytes": "6 GiB"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": "16"}, "step 1.size is '16', not an int"),
        ({"on": None}, "step 1.on is None, not a string"),
        ({"proof": "sworn"}, "step 1.proof is 'sworn', not one of 'compiled', 'assigned'"),
        ({"fit": {**FIT, "limit_bytes": "1"}}, "the verdict.limit_bytes is '1', not an int"),
    ],
)
def test_a_damaged_step_of_a_baseline_is_named(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """By its number and field."""
    file = tmp_path / "hbm.json"
    save_baseline(file, [Entry("a:step", "", 16, "v5e", "assigned", BEFORE)])
    values = json.loads(file.read_text())
    values["steps"][0] |= change
    file.write_text(json.dumps(values))

    with pytest.raises(ValueError) as caught:
        load_baseline(file)
    assert str(caught.value) == said


def test_a_notebook_shows_the_verdict_above_the_page_of_the_report() -> None:
    """And a prompt shows the figures, without the whole report."""
    found = Largest(16, 17, BEFORE, {16: BEFORE})
    for shown, text in ((BEFORE, "fits v5e: needs 6.00 GiB"), (found, "16 is the largest size")):
        assert shown._repr_html_().startswith(f"<p>{text}")
        assert "<iframe" in shown._repr_html_()
        assert len(repr(shown)) < 500
