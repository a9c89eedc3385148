"""A step beside what a baseline has of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from hbmwatch import Fit, OomReport, PeakOp
from hbmwatch._preflight.budget import (
    Budgeted,
    Entry,
    Tolerance,
    distinct_names,
    load_baseline,
    save_baseline,
)
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary

MIB, GIB = 2**20, 2**30
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def summary(*ops: PeakOp) -> PeakSummary:
    """The peak of these buffers."""
    total = sum(op.size_bytes for op in ops)
    heap = np.array([total], dtype=np.int64)
    return PeakSummary("jit_step", 1, "hbm", total, total, 0, heap, 0, 0, 0, total, total, 0, ops)


def fit(*sizes: tuple[str, int], fits: bool = True, versions: dict[str, str] = VERSIONS) -> Fit:
    """A verdict on a step whose source lines hold these bytes at the peak."""
    ops = [
        PeakOp(f"dot.{n}", "dot", "dot_general", size_bytes=size, kind="temporary", source=source)
        for n, (source, size) in enumerate(sizes)
    ]
    report = OomReport(OomMessage(""), summary(*ops), versions=versions)
    peak = sum(size for _, size in sizes)
    return Fit(fits, peak, peak, 16126 * MIB, "v5e", "assigned", report)


BEFORE = fit(("steps.py:48", 4 * GIB), ("steps.py:61", 2 * GIB))
GROWN = fit(("steps.py:48", 4 * GIB + 256 * MIB), ("steps.py:61", 2 * GIB))


def test_the_lines_that_grew_are_named() -> None:
    """From what to what, by how much, and where."""
    assert str(Budgeted("train_step", GROWN, BEFORE)) == (
        "train_step on v5e: peak 6.00 GiB -> 6.25 GiB (+256 MiB): +256 MiB at steps.py:48"
    )
    assert str(Budgeted("train_step", BEFORE, BEFORE)) == (
        "train_step on v5e: peak 6.00 GiB, unchanged"
    )
    assert str(Budgeted("train_step", BEFORE)).startswith("train_step is new: fits v5e:")


def test_a_step_without_a_peak_is_not_called_new() -> None:
    """It is in the baseline; why it has no peak is said."""
    hung = dataclasses.replace(GROWN, fits=None, peak_bytes=None, total_bytes=None, error="hung")

    assert str(Budgeted("train_step", hung, BEFORE)) == (
        "train_step cannot be compared with the baseline: no verdict for v5e: hung"
    )


def test_steps_of_one_name_are_told_apart() -> None:
    """By module and arguments, where the short name is another step's on the same target."""
    a = ("a:step", "a:args", 16, "v5e")
    b = ("b:step", "", 16, "v5e")
    c = ("b:step", "", 16, "v6e")

    assert distinct_names([a, b, c]) == {
        a: "a:step with a:args(16)",
        b: "b:step(16)",
        c: "step(16)",
    }


@pytest.mark.parametrize(
    ("tolerance", "over"),
    [(None, False), ("0%", True), ("4%", True), ("5%", False), ("255MiB", True), ("256MiB", False)],
)
def test_an_increase_is_measured_against_the_tolerance(tolerance: str | None, over: bool) -> None:
    """256 MiB is 4.2% of 6 GiB; without a tolerance, a step that fits does not fail."""
    read = None if tolerance is None else Tolerance.read(tolerance)

    assert Budgeted("s", GROWN, BEFORE).is_over(read) is over
    assert not Budgeted("s", BEFORE, GROWN).is_over(read)
    assert not Budgeted("s", GROWN).is_over(read)


def test_what_does_not_fit_is_over_without_a_tolerance() -> None:
    """Also where it is new, or where it did not fit before."""
    over = dataclasses.replace(GROWN, fits=False, error="refused")

    assert Budgeted("s", over).is_over(None)
    assert Budgeted("s", over, over).is_over(None)
    assert "Does not fit v5e" in str(Budgeted("s", over, BEFORE))


def test_growth_with_another_version_does_not_count() -> None:
    """The growth is shown, and the versions that changed are named."""
    newer = dataclasses.replace(
        GROWN, report=dataclasses.replace(GROWN.report, versions={**VERSIONS, "jax": "0.12.0"})
    )
    found = Budgeted("s", newer, BEFORE)

    assert not found.is_over(Tolerance.read("0%"))
    assert found.new_versions == {"jax": ("0.10.2", "0.12.0")}
    assert str(found).endswith(
        "Growth does not count, because versions changed: jax 0.10.2 -> 0.12.0"
    )


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every step, with its report."""
    entries = [
        Entry("pkg.model:step", "pkg.model:args_of", 16, "v5e", "assigned", BEFORE),
        Entry("pkg.model:step", "", None, "", "compiled", GROWN),
    ]
    save_baseline(tmp_path / "hbm.json", entries)

    assert load_baseline(tmp_path / "hbm.json") == entries
    assert list(distinct_names([one.key for one in entries]).values()) == ["step(16)", "step"]
    assert load_baseline(tmp_path / "none.json") == []


@pytest.mark.parametrize("values", [[], {"schema": 9}, {"schema": 1, "steps": [{"step": "x"}]}])
def test_a_file_that_is_no_baseline_is_refused(values: object, tmp_path: Path) -> None:
    """A ValueError, whatever is in it."""
    (tmp_path / "hbm.json").write_text(json.dumps(values))
    with pytest.raises(ValueError):
        load_baseline(tmp_path / "hbm.json")


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("2%", Tolerance(share=0.02)),
        ("0", Tolerance()),
        ("64MB", Tolerance(size_bytes=2**26)),
        ("0.5 gib", Tolerance(size_bytes=2**29)),
        ("67108864", Tolerance(size_bytes=2**26)),
    ],
)
def test_a_tolerance_is_a_share_or_a_size(text: str, tolerance: Tolerance) -> None:
    """A bare number is bytes, and units have base 1024."""
    assert Tolerance.read(text) == tolerance


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' is not a size such as 64MiB, or a share such as 2%"),
        ("2", "'2' has no unit: write 2MiB, or a share such as 2%"),
        ("-1MiB", "'-1MiB' is not a size such as 64MiB, or a share such as 2%"),
        ("two percent", "'two percent' is not a size such as 64MiB, or a share such as 2%"),
    ],
)
def test_what_is_no_tolerance_is_refused(text: str, error: str) -> None:
    """A small number without a unit can be a share or a size."""
    with pytest.raises(ValueError) as refused:
        Tolerance.read(text)
    assert str(refused.value) == error
