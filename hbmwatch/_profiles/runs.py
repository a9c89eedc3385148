"""Where profiles are kept: run folders that `xprof --logdir` lists and that nobody overwrites."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import stat
import tempfile
import time
import uuid
from pathlib import Path

_KEPT_RUNS = 8


def new_run(logdir: str | None, process_index: int = 0) -> Path:
    """The folder of a new run, not made yet: LOGDIR/plugins/profile/RUN.

    Its name holds the time, JAX's process index, the process and a random part: two runs in one
    second, of two processes or of two hosts on one file system are two folders.
    """
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S")
    run = f"{stamp}_hbmwatch_p{process_index}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    return Path(_own_logdir() if logdir is None else logdir) / "plugins" / "profile" / run


def keep(xspace: bytes, logdir: str | None, process_index: int) -> Path:
    """Write a profile into a new run.

    Returns:
        The xplane file.

    Raises:
        OSError: It cannot be written; nothing is left of it then.
    """
    run = new_run(logdir, process_index)
    file = run / f"{host_name()}.xplane.pb"
    try:
        run.mkdir(parents=True)
        file.write_bytes(xspace)
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise
    if logdir is None:
        drop_old_runs(run.parent)
    return file


def logdir_of(file: Path) -> str:
    """The folder that `xprof --logdir` takes, of an xplane file."""
    return str(file.parents[3])


def drop_old_runs(profiles: Path) -> None:
    """Keep the newest runs of a folder of ours; other processes may be doing the same."""
    with contextlib.suppress(OSError):
        runs = sorted(profiles.iterdir(), key=lambda run: run.stat().st_mtime)
        for run in runs[:-_KEPT_RUNS]:
            shutil.rmtree(run, ignore_errors=True)


def _own_logdir() -> str:
    """A folder under the system's temporary folder that belongs to this user alone."""
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
    """A folder of this process alone, where the user's own belongs to somebody else."""
    return tempfile.mkdtemp(prefix="hbmwatch-")


def host_name() -> str:
    name = socket.gethostname()
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name) or "host"
