"""When a profile is taken, and where it is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import PETABYTE, SMALL, fails, fill


@pytest.mark.slow
def test_a_successful_run_writes_no_file_and_starts_no_process(tmp_path: Path) -> None:
    """Without a failure nothing is made, not even the folder for profiles."""
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "import jax.numpy as jnp; from hbmwatch import watch_hbm\n"
        "sys.addaudithook(lambda name, args: print(name) if name in "
        "('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'os.mkdir') else None)\n"
        "with watch_hbm():\n"
        "    print(watch_hbm(lambda x: x + 1)(jnp.ones(2)).tolist())\n"
        "print(sorted({'xprof', 'google.protobuf'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "[2.0, 2.0]\n[]\n"
    assert list(tmp_path.iterdir()) == []


def test_capture_never_reports_from_the_message_alone(tmp_path: Path) -> None:
    """With capture="never" no profile is taken or kept."""
    with pytest.raises(HbmOomError) as caught:
        watch_hbm(fill, logdir=tmp_path, capture="never")(SMALL)

    assert caught.value.summary is None
    assert caught.value.message.requested_bytes == PETABYTE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_capture_always_keeps_a_timeline_of_each_call(tmp_path: Path) -> None:
    """Each call leaves a run of its own, two in one second too, and returns what it should."""
    step = watch_hbm(lambda x: x + 1, logdir=tmp_path, capture="always")

    results = [step(SMALL).tolist() for _ in range(2)]

    runs = list((tmp_path / "plugins" / "profile").iterdir())
    assert results == [[2.0] * 8] * 2
    assert [len(list(run.glob("*.xplane.pb"))) for run in runs] == [1, 1]


@pytest.mark.slow
def test_capture_always_never_costs_the_step(tmp_path: Path) -> None:
    """Where the trace cannot start or be kept, the step still runs, and the profiler works."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    step = watch_hbm(lambda x: x + 1, logdir=in_the_way / "logs", capture="always")
    assert step(SMALL).tolist() == [2.0] * 8

    with jax.profiler.trace(str(tmp_path / "users")):
        assert step(SMALL).tolist() == [2.0] * 8
    assert len(list((tmp_path / "users").rglob("*.xplane.pb"))) == 1


def test_a_profile_under_the_temporary_folder_stays_while_its_error_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a logdir each report's profile is kept, in a folder that is this user's alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = watch_hbm(fill)

    errors = [fails(step, SMALL) for _ in range(10)]

    (logdir,) = {error.report.logdir for error in errors}
    assert logdir is not None
    assert Path(logdir).parent == tmp_path
    assert os.stat(logdir).st_mode & 0o077 == 0
    assert len(list(Path(logdir).glob("plugins/profile/*/*.xplane.pb"))) == 10


def test_errors_that_are_dropped_leave_eight_profiles_and_those_of_the_errors_that_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for a batch size that catches many OOMs does not fill the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = watch_hbm(fill)

    held = [fails(step, SMALL) for _ in range(2)]
    dropped = []
    for _ in range(12):
        try:
            step(SMALL)
        except HbmOomError as error:
            dropped.append(error.report.run)

    profiles = "hbmwatch-*/plugins/profile/*"
    runs = [*(error.report.run for error in held), *dropped]
    assert {*map(str, tmp_path.glob(profiles))} >= {*runs[-8:]}
    now = time.time()
    for number, run in enumerate(map(str, runs)):  # as if a minute had passed
        Path(run).mkdir(exist_ok=True)  # a slow machine has deleted it after a minute
        os.utime(run, (now - 3600 + number,) * 2)
    last = fails(step, SMALL)

    expected = {*runs[:2], *dropped[-7:], last.report.run}
    assert {*map(str, tmp_path.glob(profiles))} == expected


@pytest.mark.parametrize("as_path", [True, False])
def test_a_relative_logdir_is_where_the_watch_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_path: bool
) -> None:
    """The program may leave the folder before it fails; the report names the absolute path."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    step = watch_hbm(fill, logdir=Path("logs") if as_path else "logs")
    monkeypatch.chdir("elsewhere")

    report = fails(step, SMALL).report

    assert (report.logdir, len(list(tmp_path.glob("logs/plugins/profile/*/report.json")))) == (
        str(tmp_path / "logs"),
        1,
    )
    assert report.run is not None
    assert Path(report.run).parent == tmp_path / "logs" / "plugins" / "profile"


def test_a_relative_logdir_in_a_deleted_folder_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a working directory there is a report, which says why there is no profile."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    step = watch_hbm(fill, logdir="logs")

    with pytest.raises(HbmOomError) as caught:
        step(SMALL)

    monkeypatch.chdir(tmp_path)
    assert caught.value.summary is not None
    assert caught.value.report.missing == (
        "profile: FileNotFoundError: [Errno 2] No such file or directory: 'logs'",
    )


@pytest.mark.slow
def test_of_the_traces_of_calls_under_the_temporary_folder_the_last_eight_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With capture="always" and no logdir, a call drops those that are older than a minute."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = watch_hbm(lambda x: x + 1, capture="always")

    for _ in range(10):
        step(SMALL)
    runs = list(tmp_path.glob("hbmwatch-*/plugins/profile/*"))
    for run in runs:
        os.utime(run, (0, 0))
    step(SMALL)

    assert len(runs) == 10
    assert len(list(tmp_path.glob("hbmwatch-*/plugins/profile/*"))) == 8


CACHED = """
import sys
import time
import jax, jax.numpy as jnp
from jax._src.lib import _profiler
from hbmwatch import HbmOomError, watch_hbm

jax.config.update("jax_compilation_cache_dir", sys.argv[1] + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
step = watch_hbm(lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1, logdir=sys.argv[1])
for _ in range(2):
    session = _profiler.ProfilerSession()
    try:
        step(jnp.ones(8))
    except HbmOomError as oom:
        print(oom.summary and oom.summary.peak_bytes, oom.report.missing)
    session.stop()
"""


@pytest.mark.slow
def test_the_persistent_compilation_cache_does_not_hide_the_program(tmp_path: Path) -> None:
    """With JAX's cache on and the profiler busy, the program is compiled for its dump."""
    ran = subprocess.run(
        [sys.executable, "-c", CACHED, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == f"{PETABYTE + 32} ()\n" * 2
