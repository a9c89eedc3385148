"""The child that compiles is gone, with its folder, on every way out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import fits, verify
from hbmwatch._preflight.child import Child

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
LONG = """
import jax, jax.numpy as jnp
from hbmwatch import fits, verify

def step(x):
    for _ in range(300):
        x = jnp.tanh(x @ x) + jax.nn.softmax(x)
    return x

print("start", flush=True)
fits(step, jax.ShapeDtypeStruct((1024, 1024), jnp.float32), on="v5e", timeout_s=200)
print("done", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which a child's folder is in; empty when the test ends."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield temporary
    assert list(temporary.iterdir()) == []
    wait_for_the_end(temporary)  # what was killed may take a moment
    assert children(temporary) == []


def children(folder: Path) -> list[int]:
    """The processes that were started with a folder below this one."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def script(path: Path, text: str) -> str:
    """An executable that replaces the Python interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def until(folder: Path, name: str) -> None:
    """Wait until a child's folder has a file of a name."""
    while not list(folder.rglob(name)):
        time.sleep(0.02)


def test_a_child_that_hangs_is_killed_at_the_time_limit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is that there is none, in a sentence."""
    monkeypatch.setattr(sys, "executable", script(tmp_path / "hang", "exec sleep 1000"))
    fit = fits(jnp.sin, X, timeout_s=0.1)

    assert (fit.fits, fit.error) == (None, "still compiling after 0.1 s")
    assert fit.report.missing == ("still compiling after 0.1 s",)


def test_a_child_that_is_killed_is_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the system, where the machine runs out of memory."""
    monkeypatch.setattr(
        sys, "executable", script(tmp_path / "die", "echo last words >&2; kill -KILL $$")
    )
    fit = fits(jnp.sin, X)

    assert (fit.fits, fit.error) == (None, "the compiler died: killed by SIGKILL: last words")


def test_an_interpreter_that_is_not_there_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the start gets out."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        fits(jnp.sin, X)


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """In the body no file can become larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_program_that_cannot_be_written_is_a_sentence(folder: Path) -> None:
    """It says what could not be written."""
    with (
        pytest.raises(OSError, match="cannot write the program for the compiler: File too large"),
        files_up_to(16),
    ):
        fits(jnp.sin, X)


def test_a_dump_that_cannot_be_written_is_a_sentence(folder: Path) -> None:
    """No limit is called unknown that was given."""

    def chain(x: jax.Array) -> jax.Array:
        for _ in range(32):
            x = jnp.sin(x @ x)
        return x

    with files_up_to(4096):
        fit = fits(chain, X, limit_bytes=2**20)

    is_damaged = "the HloProto of jit_chain is damaged or is not a serialized HloProto: "
    assert fit.fits is None
    assert fit.error.startswith(f"XLA's dump of the program cannot be read: {is_damaged}")
    assert fit.error.endswith("(4096 bytes)")
    assert fit.report.missing == (fit.error,)
    assert str(fit.report).startswith("hbmwatch: memory peak of chain: unavailable")


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("", "XLA left no dump of the program"),
        (
            "module_0001.jit_sin.cpu_after_optimizations.hlo.pb",
            "XLA's dump of the program cannot be read: the HloProto of jit_sin holds no module "
            "(0 bytes)",
        ),
    ],
)
def test_no_dump_and_an_empty_one_are_told_apart(
    file: str, error: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler ends without an error, and there is no program to read."""
    made = f'touch "$3/dump/{file}"; ' if file else ""
    answer = '{"code_bytes": 1}'
    text = f"{made}echo '{answer}' > \"$3/answer.json\"; exec sleep 1000"
    monkeypatch.setattr(sys, "executable", script(tmp_path / "compiler", text))

    fit = fits(jnp.sin, X)

    assert (fit.fits, fit.error) == (None, error)


def test_a_dump_that_may_not_be_read_is_told_from_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is the operating system's, and fits and verify say it."""
    dump = "module_0001.jit_sin.cpu_after_optimizations.hlo.pb"  # a folder, which no user can read
    text = f'mkdir "$3/dump/{dump}"; echo \'{{"code_bytes": 1}}\' > "$3/answer.json"'
    monkeypatch.setattr(sys, "executable", script(tmp_path / "compiler", text))
    sentence = "XLA's dump of the program cannot be read: Is a directory"

    fit = fits(jnp.sin, X)

    assert (fit.fits, fit.error, fit.report.missing) == (None, sentence, (sentence,))
    assert str(verify(jnp.sin, X, variant=jnp.sin)) == f"the variant sin: {sentence}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_while_it_compiles_leaves_nothing(
    folder: Path, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or any other exception, while the parent waits."""
    monkeypatch.setattr(sys, "executable", script(tmp_path / "hang", "sleep 1000; exit"))

    def interrupted(dump: Path) -> bool:
        if not children(folder):  # its command line is empty for a moment while it starts
            return False
        raise error

    with pytest.raises(error), Child("cpu") as child:
        child.wait(60, interrupted)


def test_ctrl_c_again_while_the_folder_is_removed_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception gets out once everything is gone."""
    monkeypatch.setattr(sys, "executable", script(tmp_path / "hang", "exec sleep 1000"))
    remove, interrupts = tempfile.TemporaryDirectory.cleanup, [KeyboardInterrupt] * 2

    def cleanup(self: tempfile.TemporaryDirectory[str]) -> None:
        if interrupts:
            raise interrupts.pop()
        remove(self)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", cleanup)
    with pytest.raises(KeyboardInterrupt), Child("cpu"):
        pass


@pytest.mark.tpu
def test_an_error_while_the_step_is_traced_leaves_nothing(folder: Path) -> None:
    """The step's own error gets out as it is."""

    def step(x: object) -> None:
        raise ZeroDivisionError("the step's own")

    with pytest.raises(ZeroDivisionError, match="the step's own"):
        fits(step, X, on="v5e")


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_parent_ends_the_child(folder: Path, number: signal.Signals) -> None:
    """Interrupted or killed while the compiler works, a process leaves no child and no folder."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", LONG],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(folder, "*before_optimizations.hlo.pb")
    process.send_signal(number)
    output, _ = process.communicate(timeout=200)
    wait_for_the_end(folder)

    assert output == b"start\n"
    assert process.returncode == -number


def wait_for_the_end(folder: Path) -> None:
    """Wait until the folder is removed, and then until what has removed it is gone."""
    until_gone = time.monotonic() + 200
    while (any(folder.iterdir()) or children(folder)) and time.monotonic() < until_gone:
        time.sleep(0.05)


ANSWERED = """
import os, sys, time
from hbmwatch._jax.request import CompileRequest
from hbmwatch._preflight.child import Child

child = Child("cpu")
if sys.argv[1] == "forked":
    if os.fork() == 0:
        time.sleep(600)
child.ask(CompileRequest("", b"", b"", (), 1), {})
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_parent_that_is_killed_after_the_answer_leaves_nothing(folder: Path, how: str) -> None:
    """Nobody reads the answer; a process that the parent forked may keep the child's stdin open."""
    process = subprocess.Popen(
        [sys.executable, "-c", ANSWERED, how],
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    try:
        until(folder, "answer.json")
        process.kill()
        wait_for_the_end(folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_working_folder_may_be_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a job's folder was cleaned up; Python writes it as an empty entry of its path."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    assert fits(jnp.sin, X, limit_bytes=2**20, proof="assigned").fits
