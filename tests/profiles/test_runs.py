"""Run folders: their names, what is written into them, and which are deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hbmwatch._profiles import runs as runs_module
from hbmwatch._profiles.runs import drop_old_runs, keep, keep_for, new_run
from tests.live import outputs, start

DAY = 86_400.0


def names(profiles: Path) -> set[str]:
    """The runs in a folder."""
    return {run.name for run in profiles.iterdir()}


def make_run(profiles: Path, name: str, age_seconds: float) -> str:
    """A run of another process, of an age; returns its name."""
    run = profiles / name
    run.mkdir(parents=True)
    written = time.time() - age_seconds
    os.utime(run, (written, written))
    return name


def test_a_profile_is_written_where_xprof_lists_it(tmp_path: Path) -> None:
    """LOGDIR/plugins/profile/RUN/HOST.xplane.pb, and no other file."""
    kept = keep(b"profile", str(tmp_path), 3)

    assert kept.logdir == tmp_path
    assert kept.run.parent == tmp_path / "plugins" / "profile"
    assert "_hbmwatch_p3_" in kept.run.name
    assert kept.xplane is not None
    assert [*kept.run.iterdir()] == [kept.xplane]
    assert kept.xplane.name.endswith(".xplane.pb")
    assert kept.xplane.read_bytes() == b"profile"


def test_runs_of_one_moment_have_different_names(tmp_path: Path) -> None:
    """A thousand names of one process are a thousand names."""
    assert len({new_run(str(tmp_path)) for _ in range(1000)}) == 1000


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The error is the system's, and neither a run nor a part of a file is left."""
    (tmp_path / "plugins").write_text("")

    with pytest.raises(OSError, match="plugins"):
        keep(b"profile", str(tmp_path), 0)

    assert [path.name for path in tmp_path.rglob("*")] == ["plugins"]


def test_a_logdir_of_the_user_keeps_every_run(tmp_path: Path) -> None:
    """Only in the folder under the temporary folder are runs deleted."""
    for _ in range(20):
        keep(b"profile", str(tmp_path), 0)

    assert len(names(tmp_path / "plugins" / "profile")) == 20


class Report:
    """Something that names a run and may be dropped."""


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("being made", range(40)),
        ("in use", range(40)),
        ("every tenth in use", [0, 10, 20, 30, *range(32, 40)]),
        ("dropped", range(32, 40)),
    ],
)
def test_a_run_stays_while_its_report_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, expected: Sequence[int]
) -> None:
    """Of the others the last eight stay, where they are older than a minute."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runs, held = [], []
    for number in range(40):
        runs.append(keep(b"profile", None, 0).run)
        os.utime(runs[-1], (time.time() - DAY + number,) * 2)
        report = Report()
        if state != "being made":
            keep_for(report, str(runs[-1]))
        if state == "in use" or (state == "every tenth in use" and number % 10 == 0):
            held.append(report)
        del report
    drop_old_runs(runs[0].parent)

    assert names(runs[0].parent) == {runs[number].name for number in expected}


def test_a_report_of_a_run_elsewhere_keeps_nothing(tmp_path: Path) -> None:
    """What is in a folder of the user is never deleted, so nothing of it is remembered."""
    before = dict(runs_module._reports)
    keep_for(Report(), str(keep(b"profile", str(tmp_path), 0).run))

    assert runs_module._reports == before


def test_of_each_process_the_last_eight_are_kept(tmp_path: Path) -> None:
    """Of this one too, where no report names them: timelines of calls that succeeded."""
    processes = {"this": new_run(str(tmp_path)).name.rpartition("_")[0]} | {
        which: f"2026_03_01_10_00_00_hbmwatch_p0_{which}_0123abcd" for which in ("7", "8")
    }
    made = {
        process: [make_run(tmp_path, f"{process}_{n}", DAY - n) for n in range(12)]
        for process in processes.values()
    }
    young = [make_run(tmp_path, f"{process}_99", 30.0) for process in processes.values()]
    drop_old_runs(tmp_path)

    assert names(tmp_path) == {*young, *(run for runs in made.values() for run in runs[-7:])}


def test_the_runs_of_other_processes_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve failures here delete none of the ten profiles that other reports have named."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profiles = new_run(None).parent
    others = {make_run(profiles, f"run{n}_hbmwatch_p0_{n}_abc_1", DAY) for n in range(10)}

    kept = [keep(b"profile", None, 0) for _ in range(12)]

    assert names(profiles) == others | {k.run.name for k in kept}


def test_the_oldest_runs_of_other_processes_go_beyond_64(tmp_path: Path) -> None:
    """Except those that are younger than a minute: their reports may not be printed yet."""
    old = [make_run(tmp_path, f"old{n}", DAY + n) for n in range(70)]
    drop_old_runs(tmp_path)
    assert names(tmp_path) == set(old[:64])

    young = [make_run(tmp_path, f"young{n}", 30.0) for n in range(70)]
    drop_old_runs(tmp_path)
    assert names(tmp_path) == set(young)


FAILURES = """
import tempfile
tempfile.tempdir = sys.argv[1]
from hbmwatch._profiles.runs import keep
for _ in range(5):
    keep(b"profile", None, 0)
"""


def test_every_failing_process_of_a_user_has_its_profiles(tmp_path: Path) -> None:
    """Three processes with five failures each have fifteen profiles."""
    outputs([start(FAILURES, tmp_path, prelude="import sys\n") for _ in range(3)])

    assert len([*tmp_path.rglob("*.xplane.pb")]) == 15
