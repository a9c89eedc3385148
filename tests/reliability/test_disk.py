"""The OOM and its peak get out whatever is wrong with the disk."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, load_peak_summary, watch_hbm
from tests.live import PETABYTE, SIDE, SMALL, fill, oom_of, outputs, start


def kept(logdir: Path) -> list[Path]:
    """The profiles in a folder."""
    return sorted(logdir.glob("plugins/profile/*/*.xplane.pb"))


def without_profile(oom: HbmOomError) -> str:
    """Why an OOM that has its peak has no profile."""
    assert oom.summary is not None and oom.summary.peak_bytes >= PETABYTE
    assert oom.report.logdir is None
    (sentence,) = oom.report.missing
    return sentence


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options; skips where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a file system takes root on Linux")
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_the_profile_alone(mounted: Callable[[str], Path]) -> None:
    """The report has the peak, says that no space was left, and leaves no half-written file."""
    disk = mounted("size=64k")
    (disk / "filler").write_bytes(bytes(64 * 1024))

    reason = without_profile(oom_of(watch_hbm(disk)(fill), SMALL))

    assert "No space left on device" in reason
    assert [file for file in disk.rglob("*") if file.is_file()] == [disk / "filler"]
    assert list((disk / "plugins" / "profile").iterdir()) == []


def test_a_read_only_disk_costs_the_profile_alone(mounted: Callable[[str], Path]) -> None:
    """The report has the peak and says that the file system is read-only."""
    disk = mounted("ro")

    assert "Read-only file system" in without_profile(oom_of(watch_hbm(disk)(fill), SMALL))


IN_THE_WAY = ("logs", "logs/plugins", "logs/plugins/profile")


@pytest.mark.parametrize("place", IN_THE_WAY)
def test_a_file_where_a_folder_should_be_costs_the_profile_alone(
    place: str, tmp_path: Path
) -> None:
    """The report has the peak and names what is in the way; the file stays as it is."""
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")

    reason = without_profile(oom_of(watch_hbm(tmp_path / "logs")(fill), SMALL))

    assert str(file) in reason
    assert file.read_text() == "mine"


def test_a_folder_that_is_deleted_between_two_failures_is_made_again(tmp_path: Path) -> None:
    """Each failure keeps its profile, though the folder of the first is gone at the second."""
    step = watch_hbm(tmp_path / "logs")(fill)

    for _ in range(2):
        oom = oom_of(step, SMALL)
        assert oom.report.missing == ()
        assert len(kept(tmp_path / "logs")) == 1
        shutil.rmtree(tmp_path / "logs")


def test_a_temporary_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the name of our own folder is taken, one spare folder serves the whole process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = tmp_path / f"hbmwatch-{os.getuid()}"
    taken.symlink_to(tmp_path / "elsewhere")
    step = watch_hbm(fill)

    ooms = [oom_of(step, SMALL) for _ in range(10)]

    (logdir,) = {oom.report.logdir for oom in ooms}
    assert logdir is not None and Path(logdir) != taken
    assert not (tmp_path / "elsewhere").exists()
    assert len(kept(Path(logdir))) == 10  # each of their reports is in use


def test_failures_of_one_second_have_a_profile_each(tmp_path: Path) -> None:
    """Ten failures in a row, several of them in one second, leave ten profiles."""
    step = watch_hbm(tmp_path)(fill)

    for _ in range(10):
        oom_of(step, SMALL)

    runs = [file.parent.name for file in kept(tmp_path)]
    seconds = {run.partition("_hbmwatch")[0] for run in runs}
    assert len(runs) == 10
    assert len(seconds) < 10


def test_threads_that_fail_at_once_have_a_report_and_a_profile_each(tmp_path: Path) -> None:
    """Each thread's error is of its own program, and its profile holds that program."""
    count = 4
    together = threading.Barrier(count)

    def failing(rows: int) -> HbmOomError:
        step = watch_hbm(tmp_path)(functools.partial(wide, rows))
        together.wait()
        return oom_of(step, SMALL)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        ooms = list(pool.map(failing, range(1, count + 1)))

    peaks = [oom.summary.peak_bytes for oom in ooms if oom.summary is not None]
    assert [peak // PETABYTE for peak in peaks] == [1, 2, 3, 4]
    assert [oom.report.missing for oom in ooms] == [()] * count
    found = sorted(load_peak_summary(file).peak_bytes for file in kept(tmp_path))
    assert len(found) == count and max(found) == max(peaks)


def wide(rows: int, x: jax.Array) -> jax.Array:
    """Asks for some petabytes."""
    return jnp.broadcast_to(x[0], (rows * SIDE, SIDE)) + 1


ONE_FAILURE = """
try:
    watch_hbm(fill, logdir=sys.argv[1])(x)
except HbmOomError as oom:
    print(oom.report.logdir, oom.summary.peak_bytes, oom.report.missing)
"""


@pytest.mark.slow
def test_processes_with_one_folder_have_a_profile_each(tmp_path: Path) -> None:
    """Two processes of one host that fail at the same time do not overwrite each other's."""
    children = [start(ONE_FAILURE, tmp_path) for _ in range(2)]

    assert set(outputs(children)) == {f"{tmp_path} {PETABYTE + 32} ()\n"}
    assert len(kept(tmp_path)) == 2


NAMES = ("with spaces in it", "größe-日本語-🙂", "a/../b", "-dash", "percent%sbrace{}", "x" * 200)


@pytest.mark.parametrize("name", NAMES)
def test_any_folder_name_serves(name: str, tmp_path: Path) -> None:
    """The profile is kept there, and is read from where the report says."""
    (tmp_path / "a").mkdir()

    oom = oom_of(watch_hbm(tmp_path / name)(fill), SMALL)

    assert oom.report.missing == ()
    assert oom.report.logdir == str(tmp_path / name)
    assert oom.summary is not None
    read = load_peak_summary(oom.report.logdir)
    assert (read.peak_bytes, read.module) == (oom.summary.peak_bytes, "jit_fill")


FUNCTION_NAMES = ("<lambda>", "f" * 5000, "größe", "a/b\n\x1b[31m", "", "%s{}")


@pytest.mark.parametrize("name", FUNCTION_NAMES, ids=ascii)
def test_a_function_of_any_name_has_its_peak(name: str, tmp_path: Path) -> None:
    """Whatever the function is called, its program is found and its profile kept."""

    def step(x: jax.Array) -> Any:
        return fill(x)

    step.__name__ = name

    oom = oom_of(watch_hbm(tmp_path)(step), SMALL)

    assert oom.report.missing == ()
    assert oom.summary is not None and oom.summary.peak_bytes == PETABYTE + SMALL.nbytes
    assert len(kept(tmp_path)) == 1
    assert max(map(len, str(oom.report).splitlines())) <= 100 + len(str(tmp_path))
