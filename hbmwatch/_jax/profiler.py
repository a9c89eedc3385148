"""JAX's profiler: one way to the HloProto of a program that failed.

It leaves the user's own profiler as it is. The public jax.profiler.trace cannot be used after a
failure: when another session is open, or the folder cannot be written, it leaves jax.profiler
unusable for the rest of the process.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from hbmwatch._jax.unavailable import Unavailable

_log = logging.getLogger("hbmwatch")

_LOCK_SECONDS = 5.0  # a trace of the user's that is being written holds the lock


def collect() -> bytes:
    """The XSpace of a session that is opened and closed at once, all tracers off.

    It holds the HLO of every live executable, and of the last TPU compile, failed or not.

    Raises:
        Unavailable: The profiler is busy, or this JAX lacks the private names that are needed.
        MemoryError: The host has no memory left for the profile.
    """
    try:
        from jax._src.lib import _profiler
        from jax._src.profiler import _profile_state as state

        session, lock = _profiler.ProfilerSession, state.lock
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"this JAX has no profiler session that can be used: {error}") from error
    until = time.monotonic() + _LOCK_SECONDS
    while lock.locked():
        if time.monotonic() > until:
            raise Unavailable("the profiler is being started or stopped elsewhere")
        time.sleep(0.001)
    try:
        # Ctrl-C between acquire(timeout=...) and a `try` would leave jax.profiler locked for good.
        with lock:
            return bytes(session(_quiet_options()).stop())
    except MemoryError:  # then nothing should be compiled for a dump: compilers abort
        raise
    except Exception as error:
        raise Unavailable(f"the profiler is busy or failed: {_first_line(error)}") from error


def _quiet_options() -> Any:
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 0
    options.python_tracer_level = 0
    options.advanced_configuration = {"tpu_trace_mode": "TRACE_ONLY_HOST"}
    return options


@contextlib.contextmanager
def traced(run_folder: Path) -> Iterator[None]:
    """jax.profiler.trace around the body, its files in `run_folder`; a step never fails for it."""
    refused: list[bool] = []
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="hbmwatch-trace-"))
            # Before the start, so that Ctrl-C after it does not leave the trace running.
            stack.callback(_stop_trace, scratch, run_folder, refused)
            jax.profiler.start_trace(scratch)
        except Exception as error:
            _log.debug("no trace around this call", exc_info=error)
            refused.append(True)
        yield


def _stop_trace(scratch: str, run_folder: Path, refused: list[bool]) -> None:
    if refused:
        return
    try:
        jax.profiler.stop_trace()
    except Exception as error:
        _log.debug("the trace around this call could not be stopped", exc_info=error)
        _forget_trace()
        return
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        for file in Path(scratch).glob("plugins/profile/*/*"):
            shutil.move(file, run_folder / file.name)
    except OSError as error:
        _log.debug("the trace around this call could not be kept", exc_info=error)


def _forget_trace() -> None:
    """Let jax.profiler start again: a stop that failed leaves it in the started state for good."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.profiler import _profile_state as state

        with state.lock:
            state.reset()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
