"""Where profiles are written: run folders that `xprof --logdir` lists, each with its own name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import socket
import stat
import tempfile
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# Under the temporary folder: of one process, and of all other processes of this user.
_KEPT_RUNS, _KEPT_RUNS_OF_USER = 8, 64
# Another process may not have shown the name of a younger run yet.
_YOUNG_SECONDS = 60.0
# Process ids are reused, also in containers that share a temporary folder.
_TOKEN = uuid.uuid4().hex[:8]
_numbers = itertools.count(1)
# The runs under the temporary folder that this process made for a report, and the report, which is
# None as long as it is being made.
_reports: dict[str, weakref.ref[object] | None] = {}


class Kept(NamedTuple):
    """A profile that was written.

    Attributes:
        logdir: The folder that `xprof --logdir` takes.
        run: The folder of the run, LOGDIR/plugins/profile/RUN.
        xplane: The profile; None where there is only a report.
    """

    logdir: Path
    run: Path
    xplane: Path | None


def new_run(logdir: str | None, process_index: int = 0) -> Path:
    """The folder of a new run, which does not exist yet: LOGDIR/plugins/profile/RUN.

    Its name holds the time, JAX's process index, and a number of this process: two runs in one
    second, of two processes, or of two hosts on one file system have different names.

    Args:
        logdir: The folder for `xprof --logdir`; None for one under the temporary folder.
        process_index: jax.process_index().
    """
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S")
    run = f"{stamp}_hbmwatch_p{process_index}{_own_mark()}{next(_numbers)}"
    return Path(_own_logdir() if logdir is None else logdir) / "plugins" / "profile" / run


def keep(xspace: bytes | None, logdir: str | None, process_index: int) -> Kept:
    """Write a profile into a new run.

    Args:
        xspace: The serialized XSpace; None where there is no profile, but a report follows.
        logdir: The folder for `xprof --logdir`; None for one under the temporary folder, where
            old runs are dropped.
        process_index: jax.process_index().

    Raises:
        OSError: It cannot be written; then nothing of it is left.
    """
    run = new_run(logdir, process_index)
    if logdir is None:
        _reports[run.name] = None
    xplane = run / f"{host_name()}.xplane.pb"
    partial = run / f".{xplane.name}.partial"
    try:
        run.mkdir(parents=True)
        if xspace is not None:
            partial.write_bytes(xspace)
            partial.replace(xplane)  # a listing of the folder shows a whole profile or none
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        _reports.pop(run.name, None)
        raise
    if logdir is None:
        drop_old_runs(run.parent)
    return Kept(run.parents[2], run, None if xspace is None else xplane)


def keep_for(report: object, run: str) -> None:
    """Keep a run for as long as a report of it is in use; a run of another folder stays anyway.

    Args:
        report: The report that names the run.
        run: The folder of the run.
    """
    name = os.path.basename(run)
    if name in _reports:
        _reports[name] = weakref.ref(report, lambda _: _reports.pop(name, None))


def drop_old_runs(profiles: Path) -> None:
    """Delete old runs in the folder under the temporary folder.

    Of each process the last 8 stay, and of the processes before this one the newest 64 runs. Any
    run stays until it is a minute old, and a run of this process while its report is made or in
    use. A copy of the report does not count.
    """
    written: dict[Path, float] = {}
    with contextlib.suppress(OSError):
        for run in profiles.iterdir():
            with contextlib.suppress(OSError):  # another process may have deleted it
                written[run] = run.stat().st_mtime
        newest = sorted(written, key=lambda run: written[run], reverse=True)
        others = [run for run in newest if _own_mark() not in run.name]
        for run in {*others[_KEPT_RUNS_OF_USER:], *_beyond_last(newest)}:
            if run.name not in _reports and time.time() - written[run] > _YOUNG_SECONDS:
                shutil.rmtree(run, ignore_errors=True)


def _beyond_last(newest: Iterable[Path]) -> Iterator[Path]:
    """The runs beyond the last 8 of each process, of all runs with the newest first."""
    counts: Counter[str] = Counter()
    for run in newest:
        # "2026_03_01_10_00_00_hbmwatch_p0_4711_0123abcd_1": what all runs of a process share.
        process = run.name.partition("_hbmwatch_")[2].rpartition("_")[0] or run.name
        counts[process] += 1
        if counts[process] > _KEPT_RUNS:
            yield run


def _own_mark() -> str:
    """The part of a run's name that only runs of this process have."""
    return f"_{os.getpid()}_{_TOKEN}_"


def _own_logdir() -> str:
    """A folder under the system's temporary folder that belongs to this user."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    folder = Path(tempfile.gettempdir()) / f"hbmwatch-{user}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    made = folder.lstat()
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != user:
        return _spare_logdir()
    return str(folder)


@functools.cache
def _spare_logdir() -> str:
    """A folder of this process, used if the user's folder belongs to somebody else."""
    return tempfile.mkdtemp(prefix="hbmwatch-")


def host_name() -> str:
    """The name of this host, as the name of a file."""
    try:
        name = socket.gethostname()
    except OSError:
        name = ""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name) or "host"
