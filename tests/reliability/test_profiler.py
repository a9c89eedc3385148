"""The user's own profiler stays as it is, whatever is open when a step runs out of memory."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax._src.profiler
import jax.numpy as jnp
import pytest
from jax._src.lib import _profiler

from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._jax import profiler
from hbmwatch._jax.unavailable import Unavailable
from hbmwatch._xla.xspace import read_modules
from tests.live import PETABYTE, SMALL, fill, oom_of


def modules(folder: Path) -> set[str]:
    """The modules in the one profile of a folder, without their numbers."""
    (file,) = folder.rglob("*.xplane.pb")
    return {name.partition("(")[0] for name in read_modules(file.read_bytes())}


def events(xspace: bytes) -> bool:
    """Whether a profile has an event by this name."""
    return b"the user's own work" in xspace


def work() -> None:
    """Something of the user's that a profile shows."""
    with jax.profiler.TraceAnnotation("the user's own work"):
        jax.block_until_ready(jax.jit(jnp.sin)(SMALL))


def explained(step: Callable[..., Any]) -> None:
    """The step runs out of memory, and its report has everything."""
    oom = oom_of(step, SMALL)
    assert oom.report.missing == ()
    assert oom.summary is not None and oom.summary.peak_bytes == PETABYTE + SMALL.nbytes


@pytest.fixture(autouse=True)
def usable_afterwards(tmp_path: Path) -> Iterator[None]:
    """After each test jax.profiler still takes a complete trace."""
    yield
    with jax.profiler.trace(str(tmp_path / "afterwards")):
        work()
    (file,) = (tmp_path / "afterwards").rglob("*.xplane.pb")
    assert events(file.read_bytes())


def test_a_trace_around_the_failure_is_complete(tmp_path: Path) -> None:
    """A jax.profiler.trace that is open shows what ran before and after the failure in it."""
    step = watch_hbm(tmp_path / "ours")(fill)

    with jax.profiler.trace(str(tmp_path / "theirs")):
        work()
        explained(step)
        work()

    (file,) = (tmp_path / "theirs").rglob("*.xplane.pb")
    assert events(file.read_bytes())
    assert {"jit_fill", "jit_sin"} <= modules(tmp_path / "theirs")
    assert "jit_fill" in modules(tmp_path / "ours")


@pytest.mark.slow
def test_a_trace_around_the_step_is_complete(tmp_path: Path) -> None:
    """The page's recipe, jax.profiler.trace above watch_hbm, gives a trace and a report."""
    step = jax.profiler.trace(str(tmp_path / "theirs"))(watch_hbm(tmp_path / "ours")(fill))

    explained(step)

    assert "jit_fill" in modules(tmp_path / "theirs")


@pytest.mark.slow
def test_traces_before_and_after_a_failure_are_complete(tmp_path: Path) -> None:
    """start_trace and stop_trace work as ever between failures."""
    step = watch_hbm(tmp_path / "ours")(fill)

    for number in range(3):
        jax.profiler.start_trace(str(tmp_path / f"{number}"))
        work()
        jax.profiler.stop_trace()
        explained(step)

    for number in range(3):
        assert "jit_sin" in modules(tmp_path / f"{number}")


def test_a_raw_session_is_complete(tmp_path: Path) -> None:
    """A session that somebody else opened below jax.profiler is not disturbed."""
    step = watch_hbm(tmp_path / "ours")(fill)
    session = _profiler.ProfilerSession()

    work()
    explained(step)
    xspace = bytes(session.stop())

    assert events(xspace)
    names = {name.partition("(")[0] for name in read_modules(xspace)}
    assert {"jit_fill", "jit_sin"} <= names


@pytest.mark.slow
def test_traces_that_start_in_another_thread_during_reports_are_complete(tmp_path: Path) -> None:
    """A thread that takes trace after trace never sees an error while steps fail beside it."""
    step = watch_hbm(tmp_path / "ours")(fill)
    failed: list[BaseException] = []
    taken: list[Path] = []
    done = threading.Event()

    def take_traces() -> None:
        while not done.is_set():
            folder = tmp_path / f"theirs{len(taken)}"
            try:
                with jax.profiler.trace(str(folder)):
                    work()
            except BaseException as error:
                failed.append(error)
                return
            taken.append(folder)

    thread = threading.Thread(target=take_traces)
    thread.start()
    while len(taken) < 3 and thread.is_alive():
        explained(step)
    done.set()
    thread.join()

    assert failed == []
    for folder in taken:
        (file,) = folder.rglob("*.xplane.pb")
        assert events(file.read_bytes())


PRIVATE = {
    "ProfilerSession": _profiler,
    "_profile_state": jax._src.profiler,
    "lock": jax._src.profiler._profile_state,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_of_jax_that_is_gone_costs_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what a session of our own needs, the program is had from XLA's dump."""
    with monkeypatch.context() as gone:
        gone.delattr(PRIVATE[name], name)
        explained(watch_hbm(tmp_path)(fill))

    assert modules(tmp_path) == {"jit_fill"}


class TakenAtOnce:
    """JAX's lock of the profiler as it is when another thread takes it just after it was free."""

    def __init__(self, lock: Any) -> None:
        self.acquire, self.release = lock.acquire, lock.release
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__

    def locked(self) -> bool:
        """It was free a moment ago."""
        return False


def test_waiting_for_the_profiler_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread holds jax.profiler for long, the session is given up."""
    state = jax._src.profiler._profile_state
    monkeypatch.setattr(profiler, "_LOCK_SECONDS", 0.05)

    with state.lock:
        with monkeypatch.context() as taken:
            taken.setattr(state, "lock", TakenAtOnce(state.lock))
            with pytest.raises(Unavailable, match="another thread is starting or stopping"):
                profiler.collect()
        assert state.lock.locked()

    assert profiler.collect()


def interrupt_at(number: int) -> Callable[..., Any]:
    """A trace function that raises KeyboardInterrupt before an instruction of collect().

    Of those behind the release of the lock there are none that matter.
    """
    lines, first = inspect.getsourcelines(profiler.collect)
    release = first + next(n for n, line in enumerate(lines) if line.strip() == "finally:")
    seen = 0

    def trace(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        if frame.f_code is not profiler.collect.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (frame.f_lineno or 0) < release:
            seen += 1
            if seen == number:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.slow
def test_an_interrupt_between_any_two_instructions_leaves_the_profiler_usable() -> None:
    """Neither is jax.profiler locked, nor is a session left open, so that the next one works."""
    for number in itertools.count(1):
        sys.settrace(interrupt_at(number))
        try:
            profiler.collect()
            break  # all instructions have been interrupted
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not jax._src.profiler._profile_state.lock.locked()
        assert profiler.collect()

    assert number > 30  # more than a lock and a session


def test_capture_always_in_a_trace_of_the_users(tmp_path: Path) -> None:
    """capture="always" gives way to the trace that is open, and the failure is explained."""
    step = watch_hbm(tmp_path / "ours", capture="always")(fill)

    with jax.profiler.trace(str(tmp_path / "theirs")):
        work()
        explained(step)

    assert {"jit_fill", "jit_sin"} <= modules(tmp_path / "theirs")


def test_an_oom_is_an_oom_while_the_profiler_is_held(tmp_path: Path) -> None:
    """A session that is open for good does not keep a plain jit failure from being explained."""
    session = _profiler.ProfilerSession()
    try:
        with pytest.raises(HbmOomError), watch_hbm(tmp_path):
            jax.block_until_ready(jax.jit(fill)(SMALL))
    finally:
        session.stop()
