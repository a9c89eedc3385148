"""Run folders: their names, what is written into them, and which are deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hbmwatch._profiles.runs import drop_old_runs, keep, new_run
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


def test_what_a_report_of_this_process_names_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and however old they are: a report is read when it is found."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    kept = [keep(b"profile", None, 0) for _ in range(12)]
    for one in kept:
        os.utime(one.run, (time.time() - DAY,) * 2)
    drop_old_runs(kept[0].run.parent)

    assert names(kept[0].run.parent) == {k.run.name for k in kept}


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
