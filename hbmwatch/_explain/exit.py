"""Ends a process of a distributed job, whose peers would otherwise wait for it."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from hbmwatch._explain.failure import OOM_EXIT_STATUS
from hbmwatch._records.process import Process

# How long process 0 waits for the reports of the others: as long as its own one took, which is
# made of the same program, but a clock may be wrong and a machine busy.
_LEAST_GRACE_SECONDS, _MOST_GRACE_SECONDS = 3.0, 30.0
_OWN_FILES = str(Path(__file__).parents[1]) + os.sep


def exit_now(error: BaseException, process: Process | None) -> NoReturn:
    """Print an error as the interpreter would, and exit with OOM_EXIT_STATUS.

    Exit handlers do not run: that of jax.distributed waits for all processes, and the others
    wait in a collective for this one. Child processes of `multiprocessing` that are daemons are
    terminated, as at the interpreter's own exit.

    Args:
        error: What would be raised.
        process: This process. The first one of a job exits some seconds later: JAX's coordination
            service runs in it, and the other processes end with it, also while they report.
    """
    try:
        with contextlib.suppress(Exception):  # a closed stderr must not keep the process
            sys.stderr.write(_text(error))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if process is not None and process.index == 0 and process.count > 1:
            time.sleep(_grace_seconds(process))
        _terminate_daemons()
    finally:
        os._exit(OOM_EXIT_STATUS)


def _grace_seconds(process: Process) -> float:
    """How long process 0 waits: as long as it took since it failed, within limits."""
    took = 0.0
    with contextlib.suppress(ValueError):
        took = time.time() - datetime.datetime.fromisoformat(process.time).timestamp()
    return min(max(took, _LEAST_GRACE_SECONDS), _MOST_GRACE_SECONDS)


def _terminate_daemons() -> None:
    """Terminate what loads data for this process: it would wait for it, and hold its pipes open."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None:
        return
    for child in processes.active_children():
        if child.daemon:
            child.terminate()


def _text(error: BaseException) -> str:
    """The error as Python prints an uncaught one: its causes, its frames from the program's first
    one on, and the members of a group."""
    shown = traceback.TracebackException.from_exception(error)
    above = traceback.extract_stack(inspect.currentframe())
    below = traceback.extract_tb(error.__traceback__)
    frames = [f for f in (*above, *below) if not f.filename.startswith(_OWN_FILES)]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format())
