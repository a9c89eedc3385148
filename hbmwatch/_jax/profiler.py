"""JAX's profiler, which has the HloProto of the program that failed.

The public jax.profiler.trace cannot be used after a failure: if another session is open, or if the
folder cannot be written, it leaves jax.profiler unusable for the rest of the process. A session of
our own does not touch the user's.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from hbmwatch._jax.unavailable import Unavailable
from hbmwatch._records.failures import log_failure

_LOCK_SECONDS = 5.0  # the lock is held while a trace of the user's is written


def collect() -> bytes:
    """The serialized XSpace of a session that is opened and closed at once, all tracers off.

    It holds the HLO of every live executable, and of the last TPU compile, failed or not.

    Raises:
        Unavailable: The profiler is busy, or this JAX lacks the private names that are needed.
        MemoryError: The host has no memory left for the profile.
    """
    session, lock = _session_and_lock()
    held: list[bool] = []
    try:
        # C code takes the lock and notes it in one step. Ctrl-C after a plain call of acquire()
        # would leave jax.profiler locked for good, and `with lock` waits without a limit.
        held += filter(None, map(lock.acquire, (True,), (_LOCK_SECONDS,)))
        if not held:
            raise Unavailable("another thread is starting or stopping the profiler")
        # An interrupt before stop() drops the session, which closes it.
        return bytes(session(_quiet_options()).stop())
    except (MemoryError, Unavailable):
        raise  # without memory nothing should be compiled for a dump: compilers abort
    except Exception as error:
        raise Unavailable(f"the profiler is busy or failed: {_first_line(error)}") from error
    finally:
        if held:
            lock.release()


def _session_and_lock() -> tuple[Any, Any]:
    """The class of a profiler session, and the lock of jax.profiler, both private to JAX."""
    try:
        from jax._src.lib import _profiler

        return _profiler.ProfilerSession, _state().lock
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"this JAX has no usable profiler session: {error}") from error


def _state() -> Any:
    """The state of jax.profiler, private to JAX."""
    from jax._src.profiler import _profile_state

    return _profile_state


def _quiet_options() -> Any:
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 0
    options.python_tracer_level = 0
    options.advanced_configuration = {"tpu_trace_mode": "TRACE_ONLY_HOST"}
    return options


@contextlib.contextmanager
def traced(run_folder: Path) -> Iterator[None]:
    """jax.profiler.trace around the body, its files in `run_folder`; the body runs in any case."""
    refused: list[bool] = []
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="hbmwatch-trace-", ignore_cleanup_errors=True)
            )
            # Before the start, so that Ctrl-C after it does not leave the trace running.
            stack.callback(_stop_trace, scratch, run_folder, refused)
            jax.profiler.start_trace(scratch)
        except Exception as error:
            log_failure("could not start a trace around this call", error)
            refused.append(True)
        yield


def _stop_trace(scratch: str, run_folder: Path, refused: list[bool]) -> None:
    if refused:
        return
    try:
        jax.profiler.stop_trace()
    except Exception as error:
        log_failure("could not stop the trace around this call", error)
        _forget_trace()
        return
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        for file in Path(scratch).glob("plugins/profile/*/*"):
            shutil.move(file, run_folder / file.name)
    except Exception as error:
        log_failure("could not keep the trace around this call", error)


def _forget_trace() -> None:
    """Let jax.profiler start again: after a failed stop, JAX believes that it still runs."""
    with contextlib.suppress(ImportError, AttributeError):
        state = _state()
        with state.lock:
            state.reset()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
