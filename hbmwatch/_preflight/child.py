"""A compiler in a child process: it starts, compiles once, and is killed in every case."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hbmwatch._jax import compile_child
from hbmwatch._jax.compile_child import ANSWER, DUMP, JOB, MODULE, OPTIONS
from hbmwatch._jax.libtpu_environment import WITHOUT_TPU
from hbmwatch._jax.request import CompileRequest
from hbmwatch._profiles.child_process import ended_by, last_lines
from hbmwatch._profiles.python_path import python_path

_POLL_S = 0.01
_LEAST_FREE = 2**20
_FATAL = re.compile(r"Check failed: .*")  # how a compiler says why it aborts
_COMPILER_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")  # the latter before jax 0.8

_ENVIRONMENT = {**WITHOUT_TPU, "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True, slots=True)
class Answer:
    """How a compile ended.

    Attributes:
        ended: "done" (compiled), "refused" (the compiler's own error), "stopped" (killed, because
            the dump had all that was needed), "timeout" (killed), or "died".
        error: The compiler's error, or how the process ended; "" if it compiled.
        code_bytes: The size of the generated code; None unless it compiled.
        cpu_seconds: Processor seconds of the child, its start included.
    """

    ended: str
    error: str = ""
    code_bytes: int | None = None
    cpu_seconds: float = 0.0


class Child:
    """One compile in a child process with its own folder; the `with` block removes both.

    Attributes:
        folder: Its folder.
        dump: The folder for XLA's dump.
        is_asked: Whether it has got its program.
    """

    def __init__(self, platform: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hbmwatch-compile-")
        self.folder = Path(self._folder.name)
        self.dump = self.folder / DUMP
        self.dump.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_asked = False
        try:
            self._process = _start(self.folder, platform)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted: KeyboardInterrupt | None = None
        while True:
            try:
                self._kill()
                self._folder.cleanup()
                break
            except KeyboardInterrupt as again:  # people press Ctrl-C more than once
                interrupted = again
        if interrupted is not None:
            raise interrupted

    def ask(self, request: CompileRequest, job: Mapping[str, Any]) -> None:
        """Send the program to compile.

        Raises:
            OSError: It cannot be written into the folder.
        """
        assert self._process is not None and self._process.stdin is not None
        self.is_asked = True
        try:
            (self.folder / MODULE).write_bytes(request.module)
            (self.folder / OPTIONS).write_bytes(request.options)
            (self.folder / JOB).write_text(json.dumps(job))
        except OSError as error:
            why = f"cannot write the program for the compiler: {error.strerror}"
            raise OSError(error.errno, why, str(self.folder)) from error
        with contextlib.suppress(BrokenPipeError):  # it has died: wait() reports that
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def wait(
        self,
        timeout_s: float,
        seen_enough: Callable[[Path], bool],
        gives_up: Callable[[], bool] | None = None,
    ) -> Answer:
        """Wait for the answer; kill the child at the time limit, or when the dump is sufficient.

        Args:
            timeout_s: Seconds from now.
            seen_enough: Whether the dump folder has all that is needed.
            gives_up: Asked again and again: whether to wait no longer.
        """
        start = time.monotonic()
        until = start + timeout_s
        while True:
            ended = self._reap(os.WNOHANG)
            if ended is not None:
                return self._answer(*ended)
            if (self.folder / ANSWER).exists():  # it waits to be killed
                return self._answer(0, self._kill())
            if seen_enough(self.dump):
                return Answer("stopped", cpu_seconds=self._kill())
            if time.monotonic() >= until or (gives_up is not None and gives_up()):
                waited_s = min(timeout_s, time.monotonic() - start)
                error = f"still compiling after {round(waited_s, 0 if waited_s >= 1 else 1):g} s"
                return Answer("timeout", error, cpu_seconds=self._kill())
            time.sleep(_POLL_S)

    def full_disk(self) -> str:
        """A sentence to add to a missing answer or dump; "" if the disk has room for them."""
        free = shutil.disk_usage(self.folder).free
        return f"; the disk of {self.folder.parent} is full" if free < _LEAST_FREE else ""

    def _answer(self, status: int, cpu_seconds: float) -> Answer:
        """The answer of a child that has ended by itself."""
        try:
            found = json.loads((self.folder / ANSWER).read_text())
        except (OSError, ValueError):
            error = f"the compiler died: {ended_by(status)}{self._said()}{self.full_disk()}"
            return Answer("died", error, None, cpu_seconds)
        if "error" in found:
            ended = "refused" if found["kind"] in _COMPILER_ERRORS else "died"
            return Answer(ended, found["error"], None, cpu_seconds)
        return Answer("done", "", found["code_bytes"], cpu_seconds)

    def _said(self) -> str:
        """The last lines that the child printed."""
        try:
            output = (self.folder / "log").read_bytes()
        except OSError:
            return ""
        if fatal := _FATAL.search(output[-4000:].decode("utf-8", "replace")):
            return f": {fatal[0].strip()}"
        return last_lines(output)

    def _kill(self) -> float:
        """Kill the child and what it started; returns its processor seconds."""
        process = self._process
        if process is None:
            return 0.0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        ended = self._reap(0)
        return 0.0 if ended is None else ended[1]

    def _reap(self, options: int) -> tuple[int, float] | None:
        """The exit status and the processor seconds of the child; None while it runs."""
        process = self._process
        if process is None:
            return None
        try:
            pid, status, usage = os.wait4(process.pid, options)
        except ChildProcessError:  # other code has already waited for the child
            self._process = None
            process.returncode = 0
            return 0, 0.0
        if not pid:
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        self._process = None
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        return process.returncode, usage.ru_utime + usage.ru_stime


def _start(folder: Path, platform: str) -> subprocess.Popen[bytes]:
    """Start the child in a process group of its own."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise RuntimeError(
            "compiling needs a Python interpreter for its child process, and this program has "
            "none (it is frozen, or sys.executable is not set)"
        )
    environment = {**_ENVIRONMENT, **os.environ, "PYTHONPATH": python_path()}
    # What a compiler leaves there, as where it is killed while ptxas runs, goes with the folder.
    environment["TMPDIR"] = str(folder)
    if platform != "tpu":
        environment["JAX_PLATFORMS"] = "cpu"
    parent = str(os.getpid())
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", compile_child.__file__, str(folder), platform, parent],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
