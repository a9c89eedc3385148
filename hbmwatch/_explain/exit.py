"""Ends a process of a distributed job, whose peers would otherwise wait for it."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from hbmwatch._explain.failure import OOM_EXIT_STATUS
from hbmwatch._records.process import Process

_GRACE_SECONDS = 3.0
_OWN_FILES = str(Path(__file__).parents[1]) + os.sep


def exit_now(error: BaseException, process: Process | None) -> NoReturn:
    """Print an error as the interpreter would, and exit with OOM_EXIT_STATUS.

    Exit handlers do not run: that of jax.distributed waits for all processes, of which the others
    wait in a collective for this one.

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
            time.sleep(_GRACE_SECONDS)
    finally:
        os._exit(OOM_EXIT_STATUS)


def _text(error: BaseException) -> str:
    """The error as Python prints an uncaught one: its causes, its frames from the program's first
    one on, and the members of a group."""
    shown = traceback.TracebackException.from_exception(error)
    above = traceback.extract_stack(inspect.currentframe())
    below = traceback.extract_tb(error.__traceback__)
    frames = [f for f in (*above, *below) if not f.filename.startswith(_OWN_FILES)]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format())
