"""A failure leaves nothing behind, and does no harm where there is nothing left."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import OomReport, watch_hbm
from tests.live import PETABYTE, SMALL, fill, oom_of, run

pytestmark = pytest.mark.slow

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc and RLIMIT_AS are Linux's")


class Holder:
    """A class whose step is a method of a state."""

    def __init__(self) -> None:
        self.step = watch_hbm(self.fill)

    def fill(self, x: jax.Array) -> jax.Array:
        return fill(x)


def in_a_block(x: jax.Array) -> Any:
    """A step inside a `with` block."""
    with watch_hbm():
        return jax.block_until_ready(jax.jit(fill)(x))


class Wrapped(Exception):
    """Somebody else's exception."""


def wrapping(x: jax.Array) -> Any:
    """A host step that raises its own error from an OOM."""
    try:
        return jax.block_until_ready(jax.jit(fill)(x))
    except jax.errors.JaxRuntimeError as error:
        raise Wrapped from error


STEPS: dict[str, Callable[[], Callable[[jax.Array], Any]]] = {
    "plain": lambda: watch_hbm(fill),
    "donated": lambda: watch_hbm(lambda x: (x + 1, fill(x)), donate_argnums=0),
    "method": lambda: Holder().step,
    "nested": lambda: watch_hbm(watch_hbm(fill), jit=False),
    "pytree": lambda: lambda x: watch_hbm(lambda tree: fill(tree["x"][0]))({"x": [x, x]}),
    "keyword": lambda: lambda x: watch_hbm(fill)(x=x),
    "with block": lambda: in_a_block,
    "compiled": lambda: watch_hbm(fill).lower(SMALL).compile(),
    "wrapped by others": lambda: watch_hbm(wrapping, jit=False),
    "asynchronous": lambda: watch_hbm(lambda x: fill(x) @ jnp.ones(2**24)),
    "on_oom that fails": lambda: watch_hbm(fill, on_oom=lambda report: 1 / 0),
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", STEPS)
def test_arrays_are_freed_when_the_except_block_ends(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every array of the failed call is gone without a collection, however it is watched."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # pytest keeps what is logged, with its traceback; another test's library may have asked for it.
    monkeypatch.setattr(logging.getLogger("hbmwatch"), "disabled", True)
    if not frees(lambda x: jax.block_until_ready(jax.jit(fill)(x))):
        pytest.skip("this jax keeps the arrays of a failed call in a cycle of its own")
    step = STEPS[name]()

    assert [frees(step), frees(step)] == [True, True]


def frees(step: Callable[[jax.Array], Any]) -> bool:
    """Whether a step that runs out of memory has let go of its argument."""
    x = jnp.ones(8)
    gone = weakref.ref(x)
    try:
        step(x)
    except (jax.errors.JaxRuntimeError, Wrapped):
        del x
    return gone() is None


def test_a_kept_error_without_its_traceback_keeps_no_array() -> None:
    """As with the error of a bare jit: a search for the batch size keeps the error alone."""

    def failure(step: Callable[[jax.Array], Any]) -> tuple[Exception, weakref.ref[Any]]:
        x = jnp.ones(8)
        try:
            step(x)
        except jax.errors.JaxRuntimeError as error:
            return error, weakref.ref(x)
        raise AssertionError("it did not fail")

    for step in (watch_hbm(fill), in_a_block):
        error, array = failure(step)
        error.__traceback__ = None
        gc.collect()
        assert array() is None


def reached(start: object) -> Iterator[object]:
    """Everything that an object holds, but for modules and classes."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        at = todo.pop()
        if id(at) in seen or isinstance(at, (types.ModuleType, type, types.FunctionType)):
            continue
        seen.add(id(at))
        yield at
        todo += gc.get_referents(at)


def test_the_report_holds_no_array(tmp_path: Path) -> None:
    """From the error without its traceback no array, executable or frame can be reached."""
    oom = oom_of(watch_hbm(tmp_path)(fill), SMALL)
    oom.__context__ = None

    held = {type(thing).__name__ for thing in reached(oom)}

    assert "OomReport" in held
    held -= {"LiveArrays"}  # a record of shapes and sizes
    assert not {name for name in held if "Array" in name or "Compiled" in name or "frame" in name}


def test_nothing_is_allocated_on_the_device_while_reporting(tmp_path: Path) -> None:
    """No array is live at the end of the report that was not before the failure."""
    seen: list[int] = []
    step = watch_hbm(fill, logdir=tmp_path, on_oom=lambda _: seen.append(len(jax.live_arrays())))
    oom_of(step, SMALL)
    gc.collect()
    before = len(jax.live_arrays())
    allocated = [device.memory_stats() for device in jax.local_devices()]

    oom_of(step, SMALL)

    assert seen[1] == before
    assert len(jax.live_arrays()) == before
    assert [device.memory_stats() for device in jax.local_devices()] == allocated


HUNDREDS = """
import gc, os, resource, tempfile, threading
tempfile.tempdir = sys.argv[1]
step = watch_hbm(fill)

def failures(count):
    for _ in range(count):
        try:
            step(x)
        except HbmOomError:
            pass

def state():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return (
        len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
        threading.active_count(), len(children), len(jax.live_arrays()),
        pages * resource.getpagesize() >> 20, len(gc.get_objects()),
    )

failures(100)
before = state()
failures(300)
print(*before)
print(*state())
"""


@LINUX
def test_hundreds_of_failures_leave_only_profiles_behind(tmp_path: Path) -> None:
    """No descriptor, thread, process or array more, and no memory; only the profiles."""
    before, after = (
        [int(word) for word in line.split()] for line in run(HUNDREDS, tmp_path).splitlines()
    )

    assert after[:5] == before[:5]
    assert after[5] <= before[5] + 8  # MiB
    assert after[6] <= before[6] + 100  # objects
    # Those of the last failures, and of the last minute.
    assert 8 <= len(list(tmp_path.rglob("*.xplane.pb"))) <= 400
    assert [folder.name for folder in tmp_path.iterdir()] == [f"hbmwatch-{os.getuid()}"]


NEARLY_GONE = """
import os, resource
def long(x):
    for n in range(60):
        x = jnp.concatenate([jnp.sin(x @ jnp.ones((x.shape[0], 8 + n % 7))), x])[:8 + n % 3]
    return fill(x)
step = watch_hbm(long, logdir=sys.argv[1]).lower(x).compile()
if sys.argv[3] == "loaded":  # all modules that a report needs
    try:
        watch_hbm(fill, logdir=sys.argv[1])(x)
    except HbmOomError:
        pass
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used, used))
spare = [bytes(2**9) for _ in range(2 * int(sys.argv[2]))]
hog, text = [], "no OOM"
for size in (2**20, 2**16, 2**12, 2**9):
    try:
        while True:
            hog.append(bytes(size))
    except MemoryError:
        pass
try:
    spare.clear()
    step(x)
except HbmOomError as error:
    del hog
    text = f"OOM {bool(error.report.missing)}"
except jax.errors.JaxRuntimeError as error:
    del hog
    text = "OOM True" if "Out of memory" in str(error) else "another"
os.write(1, text.encode())
os._exit(0)
"""
LEFT = ((64, "not loaded"), (800, "not loaded"), (64, "loaded"), (300, "loaded"), (8000, "loaded"))


@LINUX
@pytest.mark.parametrize(("kib", "loaded"), LEFT)
def test_with_host_memory_gone_the_oom_gets_out(
    kib: int, loaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this much address space left, the OOM is still raised, with less in its report."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # it would need memory too
    assert run(NEARLY_GONE, tmp_path, kib, loaded) == "OOM True"


class Hostile:
    """An object that raises whatever is asked of it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("hbmwatch"):
            raise RuntimeError("not equal to anything of ours")
        return self is other


class HostileError(Exception):
    """An error that gives no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Node:
    """A pytree whose text and comparison raise."""

    def __init__(self, x: jax.Array, hostile: Hostile) -> None:
        self.x, self.hostile = x, hostile

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    __hash__ = None  # type: ignore[assignment]


jax.tree_util.register_pytree_node(
    Node, lambda node: ((node.x,), node.hostile), lambda hostile, xs: Node(*xs, hostile)
)


def failing_with_hostile_error(report: OomReport) -> None:
    """An on_oom whose error has no text."""
    raise HostileError


def test_user_objects_that_raise_do_no_harm(tmp_path: Path) -> None:
    """Static arguments, pytrees and errors without a repr, a text or a comparison."""
    hostile = Hostile(1)
    static = watch_hbm(lambda x, y: fill(x), logdir=tmp_path, static_argnums=1)
    node = watch_hbm(lambda node: fill(node.x), logdir=tmp_path)
    told = watch_hbm(fill, logdir=tmp_path, on_oom=failing_with_hostile_error)
    host = watch_hbm(
        lambda *things: jax.block_until_ready(jax.jit(fill)(things[0])), jit=False, logdir=tmp_path
    )

    ooms = [
        oom_of(static, SMALL, hostile),
        oom_of(node, Node(SMALL, hostile)),
        oom_of(told, SMALL),
        oom_of(host, SMALL, hostile, [hostile], {"a": hostile}),
    ]

    for oom in ooms:
        assert oom.report.missing == ()
        assert oom.summary is not None and oom.summary.peak_bytes == PETABYTE + SMALL.nbytes
        assert str(oom.report)
    assert ooms[2].__notes__[1].startswith("hbmwatch: on_oom raised HostileError")


def test_threads_are_not_started(tmp_path: Path) -> None:
    """A failure is explained in the thread in which it happens."""
    before = threading.active_count()
    seen: list[int] = []

    def on_oom(report: OomReport) -> None:
        seen.append(threading.active_count())

    oom_of(watch_hbm(fill, logdir=tmp_path, on_oom=on_oom), SMALL)
    oom_of(functools.partial(watch_hbm(fill, logdir=tmp_path)), SMALL)

    assert seen == [before]
