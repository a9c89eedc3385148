"""An OOM gets out once and in order, wherever the program is when it happens."""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, OomReport, watch_hbm
from tests.live import PETABYTE, PRELUDE, SIDE, SMALL, fill, oom_of, run

pytestmark = pytest.mark.slow


def doubled(x: jax.Array) -> jax.Array:
    """Another program that asks for a petabyte."""
    return fill(x) * 2


def test_an_oom_in_the_handler_of_another_is_explained_as_its_own(tmp_path: Path) -> None:
    """Both have a report of their own program, and the second has the first as its context."""
    step = watch_hbm(tmp_path)(fill)
    smaller = watch_hbm(tmp_path)(doubled)
    ooms: list[HbmOomError] = []
    try:
        try:
            step(SMALL)
        except HbmOomError as first:
            ooms.append(first)
            smaller(SMALL)
    except HbmOomError as second:
        ooms.append(second)

    names = [oom.summary.module for oom in ooms if oom.summary is not None]
    assert names == ["jit_fill", "jit_doubled"]
    assert ooms[1].__context__ is ooms[0] and not ooms[1].__suppress_context__


def test_recursion_explains_once(tmp_path: Path) -> None:
    """A watched function that calls itself raises the innermost call's error through all."""
    reports: list[OomReport] = []

    @watch_hbm(tmp_path, jit=False, on_oom=reports.append)
    def step(depth: int) -> Any:
        return step(depth - 1) if depth else jax.block_until_ready(jax.jit(fill)(SMALL))

    oom = oom_of(step, 20)

    assert [id(report) for report in reports] == [id(oom.report)]
    assert oom.__notes__ == [str(oom.report)]


NEAR_THE_LIMIT = """
from jax.errors import JaxRuntimeError

@watch_hbm(sys.argv[1], jit=False)
def step():
    raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes.")

def deeper(depth):
    return deeper(depth - 1) if depth else step()

try:
    step()
except HbmOomError as oom:
    print(type(oom).__name__)
kinds = set()
for depth in range(700, 1000):
    try:
        deeper(depth)
    except RecursionError:
        kinds.add("too deep for the step itself")
    except JaxRuntimeError as error:
        kinds.add("OOM with a report" if isinstance(error, HbmOomError) else "OOM without")
print(*sorted(kinds), sep="; ")
"""


def test_without_stack_for_a_report_the_oom_itself_gets_out(tmp_path: Path) -> None:
    """At every depth up to the recursion limit it is an OOM, with a report while there is room."""
    out = run(NEAR_THE_LIMIT, tmp_path)

    assert out == ("HbmOomError\nOOM with a report; OOM without; too deep for the step itself\n")


def test_a_pool_of_threads_gives_each_task_its_own_error(tmp_path: Path) -> None:
    """Every future holds the error of its own program."""

    def task(rows: int) -> Any:
        step = watch_hbm(lambda x: jnp.broadcast_to(x[0], (rows * SIDE, SIDE)) + 1, logdir=tmp_path)
        return step(SMALL)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(task, rows) for rows in range(1, 9)]
    errors = [future.exception() for future in futures]

    peaks = [
        error.summary.peak_bytes // PETABYTE
        for error in errors
        if isinstance(error, HbmOomError) and error.summary
    ]
    assert peaks == list(range(1, 9))


FORK = """
import os, warnings
warnings.simplefilter("ignore")  # jax warns of forks
try:
    watch_hbm(fill, logdir=sys.argv[1])(x)
except HbmOomError as oom:
    sys.stdout.flush()
    child = os.fork()
    text = f"{len(str(oom.report)) > 200} {oom.summary.peak_bytes}"
    if child == 0:
        print(text, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(text, status)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no fork here")
def test_a_fork_after_the_error_has_the_report_too(tmp_path: Path) -> None:
    """Both processes read the same report, and both end."""
    peak = PETABYTE + SMALL.nbytes
    assert run(FORK, tmp_path) == f"True {peak}\nTrue {peak} 0\n"


AT_EXIT = """
import atexit
step = watch_hbm(fill, logdir=sys.argv[1])
def last():
    try:
        step(x)
    except jax.errors.JaxRuntimeError as error:
        print("at exit", "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error))
atexit.register(last)
"""
AT_TEARDOWN = """
Error = jax.errors.JaxRuntimeError
def out_of_memory(error=Error("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")):
    raise error
class Late:
    step = staticmethod(watch_hbm(out_of_memory, jit=False, logdir=sys.argv[1]))
    def __del__(self, Error=Error, print=print, str=str):
        try:
            self.step()
        except Error as error:
            print("at teardown", "Out of memory" in str(error))
late = Late()
sys.modules["__main__"].late = late
"""


@pytest.mark.parametrize("code", [AT_EXIT, AT_TEARDOWN], ids=["at exit", "at teardown"])
def test_an_oom_while_the_interpreter_shuts_down_is_an_oom(code: str, tmp_path: Path) -> None:
    """It is raised, with or without a report, and the process ends as it would have."""
    command = [sys.executable, "-c", PRELUDE + code, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.endswith("True\n")
    assert "hbmwatch" not in ran.stderr


ASKED = """
import gc, signal, traceback

class Stop(BaseException):
    pass

def stop():
    raise Stop

ask = {
    "Stop": stop,
    "KeyboardInterrupt": lambda: signal.raise_signal(signal.SIGINT),
    "SystemExit": lambda: sys.exit(3),
}[sys.argv[2]]

class Asking:
    # A pytree that asks the program to stop when it is flattened, once armed.
    armed = False

def flatten(asking):
    if asking.armed:
        ask()
    return (x,), None

jax.tree_util.register_pytree_node(Asking, flatten, lambda _, leaves: Asking())
pytree = Asking()

def arm_and_fill(leaves):
    pytree.armed = True  # while it is traced
    return fill(x)

def stopped(step, argument):
    try:
        step(argument)
    except BaseException as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        print(type(error).__name__, "raise_explained" in frames)

stopped(watch_hbm(arm_and_fill, logdir=sys.argv[1]), pytree)
stopped(watch_hbm(fill, logdir=sys.argv[1], on_oom=lambda _: ask()), x)
try:
    watch_hbm(fill, logdir=sys.argv[1])(x)
except HbmOomError as oom:
    print(gc.isenabled(), oom.report.missing)
"""


@pytest.mark.parametrize("name", ["Stop", "KeyboardInterrupt", "SystemExit"])
def test_what_asks_to_stop_during_the_report_gets_out_at_once(name: str, tmp_path: Path) -> None:
    """In the midst of the report, and in on_oom; afterwards everything is as before.

    In a child, as signals reach the main thread alone, and tests may run in another one.
    """
    assert run(ASKED, tmp_path, name) == f"{name} True\n{name} True\nTrue ()\n"


INTERRUPTED = """
import traceback
step = watch_hbm(fill, logdir=sys.argv[1])

def once():
    try:
        step(x)
    except HbmOomError:
        return "oom"
    except KeyboardInterrupt:
        return "interrupt"
    except Exception as error:
        # Where it interrupts a comparison in JAX's C++ cache, JAX makes another error of it.
        if "KeyboardInterrupt" not in "".join(traceback.format_exception(error)):
            raise
        return "interrupt"

def interrupted(at):
    # Python looks for signals where a function begins and where one of C's has returned.
    moments = 0
    def profile(frame, event, arg):
        nonlocal moments
        if event in ("call", "c_return"):
            moments += 1
            if moments == at:
                raise KeyboardInterrupt
    sys.setprofile(profile)
    try:
        return once(), moments
    except KeyboardInterrupt:  # before or after the call of once()
        return "outside", moments
    finally:
        sys.setprofile(None)

once()
_, moments = interrupted(0)
seen = [interrupted(1 + n * moments // 300)[0] for n in range(300)]
print(moments > 3000, seen.count("interrupt") > 200, set(seen) <= {"interrupt", "oom", "outside"})
print(once())
with jax.profiler.trace(sys.argv[1] + "/theirs"):
    pass
try:
    step(x)
except HbmOomError as oom:
    print(oom.report.missing)
"""


def test_an_interrupt_at_any_moment_leaves_everything_usable(tmp_path: Path) -> None:
    """Ctrl-C at 300 moments of a failure: the call ends in one or the other, and goes on."""
    out = run(INTERRUPTED, tmp_path)

    assert out == "True True True\noom\n()\n"
    profiles = tmp_path / "plugins" / "profile"
    assert all(list(folder.glob("*.xplane.pb")) for folder in profiles.iterdir())
