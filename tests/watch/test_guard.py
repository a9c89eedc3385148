"""A call: when it waits for its outputs, and which errors it replaces."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

import hbmwatch
from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._messages.possible import possible_oom
from tests.live import PETABYTE, SIDE, SMALL, fails, fill


def test_a_failure_that_nobody_waits_for_is_not_lost(watch: Callable[..., Any]) -> None:
    """The first call waits for its outputs, so an asynchronous failure appears in it."""
    step = watch(lambda x: fill(x) @ jnp.ones(SIDE))  # not cheap: dispatched asynchronously

    with pytest.raises(HbmOomError):
        step(SMALL)


def test_sync_never_and_always(watch: Callable[..., Any]) -> None:
    """With "never" the call returns before it fails, with "always" each call waits."""
    never = watch(lambda x: fill(x) @ jnp.ones(SIDE), sync="never")
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(never(SMALL))
    assert not isinstance(caught.value, HbmOomError)

    always = watch(lambda x, y: (x @ x.T).sum() + y, sync="always")
    results = [always(jnp.ones((256, 256)), n) for n in range(3)]
    assert all(result.is_ready() for result in results)


@pytest.mark.slow
def test_the_call_after_a_failure_waits_until_one_has_succeeded(
    watch: Callable[..., Any],
) -> None:
    """A step that has failed once is waited for again, though nothing is compiled any more."""
    step = watch(lambda x: jnp.broadcast_to(x[0], (x.shape[0], SIDE)) @ jnp.ones(SIDE))
    step(SMALL)
    wide = jnp.ones(SIDE)

    for _ in range(3):
        fails(step, wide)


class Outputs:
    """The outputs of a step: a pytree that counts how often it is flattened to be waited for."""

    waits = 0


def flatten(outputs: Outputs) -> tuple[tuple[()], None]:
    """It has no leaves."""
    outputs.waits += 1
    return (), None


jax.tree_util.register_pytree_node(Outputs, flatten, lambda _, leaves: Outputs())


def compile_something() -> None:
    """Compile a program that is new each time."""
    jax.jit(lambda x: x + 1)(SMALL)


def compile_in_another_thread() -> None:
    """The same, in a thread of its own."""
    thread = threading.Thread(target=compile_something)
    thread.start()
    thread.join()


@watch_hbm(jit=False)
def host_step(work: Callable[[], object]) -> Outputs:
    """A host step that does some work."""
    work()
    return Outputs()


def waits(work: Callable[[], object]) -> int:
    """How often the host step waits for its outputs when it does this work."""
    outputs: Outputs = host_step(work)
    return outputs.waits


def test_a_call_waits_for_the_compiles_of_its_own_thread_alone() -> None:
    """A compile in another thread does not make a steady call wait."""
    host_step(list)

    assert waits(list) == 0
    assert waits(compile_in_another_thread) == 0
    assert waits(compile_something) == 1
    assert waits(list) == 0


def test_compiles_are_seen_after_all_listeners_have_been_cleared() -> None:
    """One call waits because it cannot know; then JAX has a listener of ours again."""
    host_step(list)

    for _ in range(2):
        jax.monitoring.clear_event_listeners()
        counts = [waits(work) for work in (list, list, compile_something, list)]
        assert counts == [1, 0, 1, 0]


def test_listeners_that_are_cleared_during_a_call_make_it_wait() -> None:
    """What was compiled between the two is not missed."""
    host_step(list)

    def clear_and_compile() -> None:
        jax.monitoring.clear_event_listeners()
        compile_something()

    assert [waits(clear_and_compile), waits(list)] == [1, 0]


@pytest.mark.slow
def test_a_step_that_succeeds_never_fails_for_our_waiting(tmp_path: Path) -> None:
    """Outputs that cannot be flattened, or that are deleted already, are returned as they are."""
    inner = jax.jit(lambda state: state + 1, donate_argnums=0)
    unsortable = {1: 1, "b": 2}

    for capture in ("on_oom", "always"):
        watch = functools.partial(watch_hbm, logdir=tmp_path, jit=False, capture=capture)
        assert watch(lambda: unsortable)() is unsortable
        out = watch(lambda state: {"old": state, "new": inner(state)})(jnp.ones(4))
        assert out["new"].tolist() == [2.0] * 4


def tiled_product(w: jax.Array, x: jax.Array) -> jax.Array:
    """A matrix product of a terabyte, which XLA leaves to YNNPACK in newer versions."""
    return jnp.tanh(jnp.tile(x, (2**24, 1)) @ w).sum()


def test_a_failure_that_may_be_an_oom_is_neither_swallowed_nor_called_one(tmp_path: Path) -> None:
    """YNNPACK gives no reason: JAX's own error gets out of the wait, with a note, once."""
    arguments = jnp.ones((256, 256)), jnp.ones((64, 256))
    with pytest.raises(jax.errors.JaxRuntimeError) as bare:
        jax.jit(tiled_product)(*arguments).block_until_ready()
    if "YNNPACK" not in str(bare.value):
        pytest.skip("this jaxlib does not use YNNPACK, or says that memory ran out")

    with pytest.raises(jax.errors.JaxRuntimeError) as caught, watch_hbm(tmp_path) as watch:
        watch_hbm(tiled_product, logdir=tmp_path)(*arguments)

    assert type(caught.value) is type(bare.value)
    assert (str(caught.value), watch.report) == (str(bare.value), None)
    notes = [note for note in caught.value.__notes__ if "hbmwatch" in note]
    assert notes == [f"hbmwatch: {possible_oom(str(bare.value))}"]
    assert "Memory possibly ran out" in notes[0]
    with pytest.raises(jax.errors.JaxRuntimeError, match="YNNPACK"), watch_hbm():
        kept = jax.jit(tiled_product)(*arguments)
    del kept


WARM = """
import resource, sys
import jax, jax.numpy as jnp
from hbmwatch import HbmOomError, watch_hbm

@watch_hbm(sys.argv[1])
def step(x):
    return jnp.broadcast_to(x[0], (2**14, 2**14)) + 1

x = jnp.ones(8)
step(x).delete()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
try:
    step(x)
except HbmOomError as oom:
    print(type(oom.__context__).__name__, oom.summary.peak_bytes >= 2**30, oom.report.missing)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds allocations on Linux alone")
def test_the_value_error_of_a_warm_call_is_an_oom(tmp_path: Path) -> None:
    """A call that fails in jit's C++ fast path raises ValueError; we make it HbmOomError."""
    ran = subprocess.run(
        [sys.executable, "-c", WARM, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "ValueError True ()\n"


def raised_in_the_step(error: BaseException) -> BaseException:
    """What comes out of a watched host step that raises `error`."""

    @watch_hbm(jit=False)
    def step() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        step()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        KeyboardInterrupt(),
        SystemExit(3),
        TypeError("add got incompatible shapes for broadcasting: (3,), (4,)"),
        ValueError("RESOURCE_EXHAUSTED is what this test's text merely names"),
        MemoryError("Unable to allocate 8.00 PiB"),
        jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no such thing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_comes_out_as_the_same_object(error: BaseException) -> None:
    """An exception that is not a device-memory OOM passes through unchanged."""
    out = raised_in_the_step(error)

    assert out is error
    assert getattr(out, "__notes__", []) == []


def test_an_error_raised_while_an_oom_is_handled_is_another_error(
    watch: Callable[..., Any],
) -> None:
    """The context of an error does not make it an OOM."""

    def step() -> None:
        try:
            jax.block_until_ready(jax.jit(fill)(SMALL))
        except jax.errors.JaxRuntimeError:
            raise KeyError("the handler's own fault")  # noqa: B904  # the context is the point

    with pytest.raises(KeyError) as caught:
        watch(step, jit=False)()

    assert getattr(caught.value, "__notes__", []) == []


def test_an_oom_that_somebody_else_wraps_stays_their_error(watch: Callable[..., Any]) -> None:
    """Their exception comes out, with the report as its one note, also through two watches."""

    class TrainingFailed(Exception):
        pass

    wrapped = TrainingFailed("step 3")

    def step() -> None:
        try:
            jax.block_until_ready(jax.jit(fill)(SMALL))
        except jax.errors.JaxRuntimeError as error:
            raise wrapped from error

    with pytest.raises(TrainingFailed) as caught, watch_hbm() as block:
        watch(watch(step, jit=False), jit=False)()

    assert caught.value is wrapped
    assert [str(block.report)] == caught.value.__notes__
    assert block.report is not None and block.report.message.requested_bytes == PETABYTE


def test_nested_watches_explain_an_oom_once(watch: Callable[..., Any], tmp_path: Path) -> None:
    """The innermost watch explains; the outer ones pass its error on."""
    reports: list[hbmwatch.OomReport] = []
    inner = watch(fill, on_oom=reports.append)
    outer = watch(lambda x: inner(x), jit=False, on_oom=reports.append)

    with pytest.raises(HbmOomError) as caught, watch_hbm(on_oom=reports.append) as block:
        outer(SMALL)

    assert reports == [caught.value.report]
    assert block.report is caught.value.report
    assert caught.value.__notes__ == [str(caught.value.report)]


def test_on_oom_is_called_before_the_raise_and_may_fail(watch: Callable[..., Any]) -> None:
    """Whatever on_oom raises, the OOM gets out, with a note."""

    def on_oom(report: hbmwatch.OomReport) -> None:
        raise RuntimeError(f"no metrics for {report.function}")

    oom = fails(watch(fill, on_oom=on_oom), SMALL)

    assert oom.__notes__[1:] == ["hbmwatch: on_oom raised RuntimeError: no metrics for fill"]


@pytest.mark.slow
def test_a_long_run_still_knows_what_compiling_takes(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long after the last compile a busy profiler does not keep a small program from its dump."""
    from jax._src.lib import _profiler

    step = watch(lambda x: jnp.broadcast_to(x[0], (x.shape[0], SIDE)) + 1)
    step(jnp.ones(3))
    wide = jnp.ones(SIDE)
    jax.jit(step.__wrapped__).lower(wide).compile()
    fails(step, wide)
    now = time.perf_counter
    monkeypatch.setattr("time.perf_counter", lambda: now() + 3600)
    session = _profiler.ProfilerSession()
    try:
        fails(step, wide)
    finally:
        session.stop()
