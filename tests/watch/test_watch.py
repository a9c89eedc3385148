"""The watch on live CPU devices: every way to use it, every way to fail."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import flax.nnx
import jax
import jax.numpy as jnp
import pytest

import hbmwatch
from hbmwatch import HbmOomError, watch_hbm
from tests.live import PETABYTE, SIDE, SMALL, fails, fill


def fill_donated(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step that gives its state back and asks for one petabyte."""
    return state + 1, fill(x)


class Model(equinox.Module):
    """An equinox module with one weight."""

    weight: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return fill(x * self.weight)


class Trainer:
    """A class whose step is a method."""

    scale = 2

    @watch_hbm(static_argnums=0)
    def step(self, x: jax.Array) -> jax.Array:
        """Fill, scaled."""
        return fill(x) * self.scale


def nnx_step() -> Callable[[jax.Array], Any]:
    model = flax.nnx.Linear(8, 8, rngs=flax.nnx.Rngs(0))

    @watch_hbm
    @flax.nnx.jit
    def step(model: flax.nnx.Linear, x: jax.Array) -> jax.Array:
        return fill(model(x))

    return functools.partial(step, model)


FORMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "bare": lambda: watch_hbm(fill),
    "with keywords": lambda: watch_hbm(top=3)(fill),
    "with jit keywords": lambda: watch_hbm(keep_unused=True)(fill),
    "with a folder": lambda: watch_hbm("profiles")(fill),
    "of a jitted function": lambda: watch_hbm(jax.jit(fill)),
    "of a partial": lambda: watch_hbm(functools.partial(jax.jit(fill))),
    "of a wrapped jitted function": lambda: watch_hbm(
        functools.wraps(fill)(functools.partial(jax.jit(fill)))
    ),
    "of a watched function": lambda: watch_hbm(watch_hbm(fill)),
    "under jax.profiler.trace": lambda: jax.profiler.trace("profiles")(watch_hbm(fill)),
    "above jax.profiler.trace": lambda: watch_hbm(jax.profiler.trace("profiles")(jax.jit(fill))),
    "of equinox.filter_jit": lambda: functools.partial(
        watch_hbm(equinox.filter_jit(Model.__call__)), Model(SMALL)
    ),
    "of flax.nnx.jit": nnx_step,
    "of a method": lambda: Trainer().step,
    "of a lambda": lambda: watch_hbm(lambda x: fill(x)),
    "of a host step": lambda: watch_hbm(jit=False)(jax.jit(lambda x: fill(x) * 2).__call__),
    "of a compiled program": lambda: watch_hbm(fill).lower(SMALL).compile(),
    "of a plain compiled program": lambda: watch_hbm(jax.jit(fill).lower(SMALL).compile()),
    "of a traced program": lambda: watch_hbm(fill).trace(SMALL).lower().compile(),
    "with a trace around each call": lambda: watch_hbm("profiles", capture="always")(fill),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_explains_a_cold_and_a_later_failure(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the step is watched, its first OOM and a later one have the peak of the program."""
    monkeypatch.chdir(tmp_path)
    step = FORMS[form]()

    ooms = [fails(step, SMALL), fails(step, SMALL)]

    peaks = {oom.summary.peak_bytes for oom in ooms if oom.summary}
    assert len(peaks) == 1
    assert PETABYTE <= peaks.pop() < PETABYTE + 2**20


def test_pmap_is_watched_as_it_is(watch: Callable[..., Any]) -> None:
    """A pmapped step runs out of memory on each of its devices, and the report is of one."""
    oom = fails(watch(jax.pmap(fill)), jnp.ones((2, 8)))

    assert oom.summary is not None and oom.report.device is not None
    assert oom.summary.peak_bytes == PETABYTE + SMALL.nbytes
    assert oom.report.device.device_count == (2 if jax.__version_info__ >= (0, 8) else 1)


def test_a_failure_that_nobody_waits_for_is_not_lost(watch: Callable[..., Any]) -> None:
    """The first call waits for its outputs, so an asynchronous failure appears in it."""
    step = watch(lambda x: fill(x) @ jnp.ones(SIDE))  # not cheap: dispatched asynchronously

    with pytest.raises(HbmOomError):
        step(SMALL)


def test_a_block_explains_what_fails_where_the_user_waits(tmp_path: Path) -> None:
    """An OOM at block_until_ready inside a `with` block has the peak of the program that failed."""
    step = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))

    with pytest.raises(HbmOomError) as caught, watch_hbm(tmp_path) as watch:
        jax.block_until_ready(step(SMALL))

    assert watch.report is caught.value.report
    assert watch.report.function == ""
    assert caught.value.summary is not None
    assert caught.value.summary.module.rstrip("_") == "jit__lambda"
    assert caught.value.summary.peak_bytes >= PETABYTE


def test_a_block_that_succeeds_has_no_report() -> None:
    """A `with` block in which nothing fails leaves `report` None."""
    with watch_hbm() as watch:
        jax.jit(jnp.sin)(SMALL)

    assert watch.report is None


def test_donated_arguments_are_named_when_they_are_gone(watch: Callable[..., Any]) -> None:
    """After a failed donated step the report names the arguments that are deleted.

    jaxlib before 0.8 leaves them alive.
    """
    step = watch(fill_donated, donate_argnums=0)
    state = jnp.ones((4, 4))

    oom = fails(step, state, SMALL)

    assert oom.report.device is not None
    assert state.is_deleted() or jax.__version_info__ < (0, 8)
    assert oom.report.device.deleted == (("state",) if state.is_deleted() else ())


def test_a_donating_inner_step_keeps_its_donation(watch: Callable[..., Any]) -> None:
    """A jitted step that donates is not jitted again, which would lose the donation."""
    inner = jax.jit(lambda state: state * 2, donate_argnums=0)
    steps = [watch(inner), watch(jit=False)(lambda state: inner(state))]

    for step in steps:
        state = jnp.ones((1024, 1024))
        jax.block_until_ready(step(state))
        assert state.is_deleted()


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


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds allocations on Linux alone")
def test_the_value_error_of_a_warm_call_is_an_oom(tmp_path: Path) -> None:
    """A call that fails in jit's C++ fast path raises ValueError; we make it HbmOomError."""
    ran = subprocess.run(
        [sys.executable, "-c", WARM, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "ValueError True ()\n"


def test_transformations_trace_through_a_watched_step(watch: Callable[..., Any]) -> None:
    """Under jit, grad, vmap, scan and checkpoint a watched step is the function that it watches."""

    square = watch(lambda x: (x**2).sum())

    def scanned(x: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, row: (carry + square(row), None), 0.0, x)[0]

    x = jnp.arange(6.0).reshape(2, 3)
    results = {
        "jit": jax.jit(square)(x),
        "grad": jax.grad(square)(x).sum(),
        "vmap": jax.vmap(square)(x).sum(),
        "scan": scanned(x),
        "checkpoint": jax.checkpoint(square)(x),
    }

    assert {name: float(value) for name, value in results.items()} == {
        "jit": 55.0,
        "grad": 30.0,
        "vmap": 55.0,
        "scan": 55.0,
        "checkpoint": 55.0,
    }


def test_an_oom_under_an_outer_jit_is_the_outer_programs(watch: Callable[..., Any]) -> None:
    """A watched step inside a watched outer one is part of the outer program."""
    inner = watch(fill)

    def outer(x: jax.Array) -> Any:
        return inner(x) + 1

    oom = fails(watch(outer), SMALL)

    assert oom.summary is not None
    assert oom.summary.module == "jit_outer"


def test_a_watched_step_has_the_stages_of_a_jitted_one() -> None:
    """lower, trace, eval_shape and clear_cache pass for jax's own."""

    def step(x: jax.Array) -> jax.Array:
        """Adds one."""
        return x + 1

    watched = watch_hbm(step)
    lowered = watched.lower(SMALL)
    compiled = lowered.compile()

    assert isinstance(watched, jax.stages.Wrapped)
    assert isinstance(watched.trace(SMALL), jax.stages.Traced)
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(compiled, jax.stages.Compiled)
    assert watched.eval_shape(SMALL) == jax.eval_shape(step, SMALL)
    assert compiled(SMALL).tolist() == [2.0] * 8
    assert compiled.memory_analysis() is not None
    watched.clear_cache()
    assert inspect.isfunction(watched)
    assert (watched.__name__, watched.__doc__, watched.__wrapped__) == ("step", "Adds one.", step)
    assert inspect.signature(watched) == inspect.signature(step)


def test_sync_never_and_always(watch: Callable[..., Any]) -> None:
    """With "never" the call returns before it fails, with "always" each call waits."""
    never = watch(lambda x: fill(x) @ jnp.ones(SIDE), sync="never")
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(never(SMALL))
    assert not isinstance(caught.value, HbmOomError)

    always = watch(lambda x, y: (x @ x.T).sum() + y, sync="always")
    results = [always(jnp.ones((256, 256)), n) for n in range(3)]
    assert all(result.is_ready() for result in results)


def test_the_call_after_a_failure_waits_until_one_has_succeeded(
    watch: Callable[..., Any],
) -> None:
    """A step that has failed once is waited for again, though nothing is compiled any more."""
    step = watch(lambda x: jnp.broadcast_to(x[0], (x.shape[0], SIDE)) @ jnp.ones(SIDE))
    step(SMALL)
    wide = jnp.ones(SIDE)

    for _ in range(3):
        fails(step, wide)


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
    """What is no device-memory OOM passes through untouched."""
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
            raise KeyError("the handler's own fault")

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


def test_capture_never_reports_from_the_message_alone(tmp_path: Path) -> None:
    """With capture="never" no profile is taken or kept."""
    with pytest.raises(HbmOomError) as caught:
        watch_hbm(fill, logdir=tmp_path, capture="never")(SMALL)

    assert caught.value.summary is None
    assert caught.value.message.requested_bytes == PETABYTE
    assert list(tmp_path.iterdir()) == []


def test_capture_always_keeps_a_timeline_of_each_call(tmp_path: Path) -> None:
    """Each call leaves a run of its own, two in one second too, and returns what it should."""
    step = watch_hbm(lambda x: x + 1, logdir=tmp_path, capture="always")

    results = [step(SMALL).tolist() for _ in range(2)]

    runs = list((tmp_path / "plugins" / "profile").iterdir())
    assert results == [[2.0] * 8] * 2
    assert [len(list(run.glob("*.xplane.pb"))) for run in runs] == [1, 1]


def test_capture_always_never_costs_the_step(tmp_path: Path) -> None:
    """Where the trace cannot start or be kept, the step still runs, and the profiler works."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    step = watch_hbm(lambda x: x + 1, logdir=in_the_way / "logs", capture="always")
    assert step(SMALL).tolist() == [2.0] * 8

    with jax.profiler.trace(str(tmp_path / "users")):
        assert step(SMALL).tolist() == [2.0] * 8
    assert len(list((tmp_path / "users").rglob("*.xplane.pb"))) == 1


def test_a_successful_run_writes_no_file_and_starts_no_process(tmp_path: Path) -> None:
    """Without a failure nothing is made, not even the folder for profiles."""
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "import jax.numpy as jnp; from hbmwatch import watch_hbm\n"
        "sys.addaudithook(lambda name, args: print(name) if name in "
        "('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'os.mkdir') else None)\n"
        "with watch_hbm():\n"
        "    print(watch_hbm(lambda x: x + 1)(jnp.ones(2)).tolist())\n"
        "print(sorted({'xprof', 'google.protobuf'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "[2.0, 2.0]\n[]\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_disabled_it_is_a_plain_jit(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With HBMWATCH_DISABLE set, a watched function is jax.jit's own, and a block does nothing."""
    monkeypatch.setenv("HBMWATCH_DISABLE", value)
    jitted = jax.jit(fill)

    assert isinstance(watch_hbm(fill, donate_argnums=0), type(jitted))
    assert id(watch_hbm(jitted)) == id(jitted)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught, watch_hbm() as block:
        jax.block_until_ready(jitted(SMALL))
    assert not isinstance(caught.value, HbmOomError)
    assert block.report is None


def generator() -> Any:
    """A generator function."""
    yield 1


async def coroutine() -> None:
    """A coroutine function."""


MISUSES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "misspelt keyword": (
        lambda: watch_hbm(donate_argnum=0),
        TypeError,
        "neither watch_hbm nor jax.jit has a keyword 'donate_argnum'",
    ),
    "jit keyword for a jitted function": (
        lambda: watch_hbm(jax.jit(fill), donate_argnums=0),
        TypeError,
        "fill is jitted already: 'donate_argnums' would be without effect",
    ),
    "jit keyword with jit=False": (
        lambda: watch_hbm(fill, jit=False, donate_argnums=0),
        TypeError,
        "fill is not jitted with jit=False: 'donate_argnums' would be without effect",
    ),
    "generator": (lambda: watch_hbm(generator), TypeError, "`with watch_hbm"),
    "coroutine": (lambda: watch_hbm(coroutine), TypeError, "`with watch_hbm"),
    "no function": (
        lambda: watch_hbm(3),  # type: ignore[call-overload]
        TypeError,
        "a function or a folder, not int",
    ),
    "two folders": (lambda: watch_hbm("a", logdir="b"), TypeError, "twice"),
    "capture": (
        lambda: watch_hbm(capture="sometimes"),  # type: ignore[call-overload]
        ValueError,
        "capture='sometimes': choose one of on_oom, always, never",
    ),
    "sync": (
        lambda: watch_hbm(sync=True),  # type: ignore[call-overload]
        ValueError,
        "sync=True: choose one of",
    ),
    "top": (lambda: watch_hbm(top=-1), ValueError, "top=-1: the report cannot show fewer"),
    "address": (lambda: watch_hbm("gs://bucket/run"), UserWarning, "not in 'gs://bucket/run'"),
    "block": (
        lambda: watch_hbm(donate_argnums=0).__enter__(),
        TypeError,
        "a `with` block takes no jit keywords: 'donate_argnums'",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_fails_where_it_is_written(misuse: str) -> None:
    """What can be told to be wrong at decoration is, in a sentence."""
    use, kind, text = MISUSES[misuse]

    with pytest.raises(kind) as caught:
        use()

    assert text in str(caught.value)


def test_a_misspelt_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """HBMWATCH_DISABLE is strictly parsed."""
    monkeypatch.setenv("HBMWATCH_DISABLE", "ture")

    with pytest.raises(ValueError, match="'ture' is neither true nor false"):
        watch_hbm(fill)


def test_a_profile_under_the_temporary_folder_is_kept_eight_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a logdir the last eight profiles are kept, in a folder that is this user's alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = watch_hbm(fill)

    logdirs = {fails(step, SMALL).report.logdir for _ in range(10)}

    (logdir,) = logdirs
    assert logdir is not None
    assert Path(logdir).parent == tmp_path
    assert os.stat(logdir).st_mode & 0o077 == 0
    assert len(list(Path(logdir).glob("plugins/profile/*/*.xplane.pb"))) == 8


def test_other_live_arrays_are_listed_without_the_calls_own(watch: Callable[..., Any]) -> None:
    """What the call was given, and what it gave before it failed, is no other tenant."""
    other = jnp.ones((3, 5, 7))
    step = watch(lambda x: (fill(x) @ jnp.ones((SIDE, 3)), x[:, None] * jnp.ones((1, 11))))

    oom = fails(step, jnp.ones(13))

    assert oom.report.device is not None
    shapes = {live.shape: (live.count, live.size_bytes) for live in oom.report.device.live}
    assert shapes[other.shape] == (1, other.nbytes)
    assert not {(13,), (SIDE, 3), (13, 11)} & shapes.keys()


def test_a_buffer_of_any_size_is_reported(watch: Callable[..., Any]) -> None:
    """Sizes beyond what a double holds exactly are sizes all the same."""
    oom = fails(watch(lambda x: jnp.broadcast_to(x[0], (2**28, 2**28)) + 1), SMALL)

    assert oom.summary is not None
    assert oom.summary.peak_bytes == 2**58 + SMALL.nbytes


def test_a_step_that_succeeds_never_fails_for_our_waiting(tmp_path: Path) -> None:
    """Outputs that cannot be flattened, or that are deleted already, are returned as they are."""
    inner = jax.jit(lambda state: state + 1, donate_argnums=0)
    unsortable = {1: 1, "b": 2}

    for capture in ("on_oom", "always"):
        watch = functools.partial(watch_hbm, logdir=tmp_path, jit=False, capture=capture)
        assert watch(lambda: unsortable)() is unsortable
        out = watch(lambda state: {"old": state, "new": inner(state)})(jnp.ones(4))
        assert out["new"].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    "transform", [jax.grad, jax.value_and_grad, jax.vmap, jax.checkpoint, jax.hessian]
)
def test_a_transformation_of_a_jitted_function_is_jitted(transform: Callable[..., Any]) -> None:
    """It holds a jitted function and is none; jit's keywords are taken."""
    jitted = jax.jit(lambda x: (x**2).sum())

    step = watch_hbm(transform(jitted), keep_unused=True)

    assert isinstance(step, jax.stages.Wrapped)
    step(SMALL)


def test_what_wraps_a_jitted_function_is_known_by_its_program(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a partial and of a traced function the program is found while the profiler is busy."""
    steps = {
        "partial": watch(functools.partial(jax.jit(fill_donated, donate_argnums=0), SMALL * 2)),
        "traced": watch(jax.profiler.trace(str(tmp_path / "inner"))(jax.jit(fill))),
    }

    from jax._src.lib import _profiler

    session = _profiler.ProfilerSession()
    try:
        oom = fails(steps["partial"], SMALL)
        assert oom.report.function == "fill_donated"
        assert steps["partial"].__name__ == "fill_donated"
        assert steps["traced"].lower(SMALL).compile().memory_analysis() is not None
    finally:
        session.stop()


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


CACHED = """
import sys
import jax, jax.numpy as jnp
from jax._src.lib import _profiler
from hbmwatch import HbmOomError, watch_hbm

jax.config.update("jax_compilation_cache_dir", sys.argv[1] + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
step = watch_hbm(lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1, logdir=sys.argv[1])
for _ in range(2):
    session = _profiler.ProfilerSession()
    try:
        step(jnp.ones(8))
    except HbmOomError as oom:
        print(oom.summary and oom.summary.peak_bytes, oom.report.missing)
    session.stop()
"""


def test_the_persistent_compilation_cache_does_not_hide_the_program(tmp_path: Path) -> None:
    """With JAX's cache on and the profiler busy, the program is compiled for its dump."""
    ran = subprocess.run(
        [sys.executable, "-c", CACHED, tmp_path], capture_output=True, text=True, check=True
    )

    assert ran.stdout == f"{PETABYTE + 32} ()\n" * 2


def test_stages_copy_and_have_a_signature() -> None:
    """copy and inspect treat a watched stage as the stage that it stands for."""
    lowered = watch_hbm(lambda x: x + 1).lower(SMALL)
    compiled = lowered.compile()

    assert isinstance(copy.copy(lowered), jax.stages.Lowered)
    assert copy.copy(compiled)(SMALL).tolist() == [2.0] * 8
    bare = jax.jit(lambda x: x + 1).lower(SMALL).compile()
    assert inspect.signature(compiled) == inspect.signature(bare)


def test_a_compiled_call_names_its_donated_arguments(watch: Callable[..., Any]) -> None:
    """The names are the function's, as in a call of the function."""
    state = jnp.ones((4, 4))
    compiled = watch(fill_donated, donate_argnums=0).lower(state, SMALL).compile()

    oom = fails(compiled, state, SMALL)

    assert oom.report.device is not None
    assert oom.report.device.deleted == (("state",) if state.is_deleted() else ())


def test_a_switch_that_becomes_wrong_inside_a_block_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The switch is read where the block begins, and nothing replaces the user's error."""
    with pytest.raises(ZeroDivisionError), watch_hbm():
        monkeypatch.setenv("HBMWATCH_DISABLE", "maybe")
        raise ZeroDivisionError

    with pytest.raises(ValueError, match="'maybe'"), watch_hbm():
        raise ZeroDivisionError


def test_a_context_keeps_its_last_report(tmp_path: Path) -> None:
    """An unrelated error in a later block leaves the report of the earlier one."""
    watch = watch_hbm(tmp_path)
    with pytest.raises(HbmOomError), watch:
        jax.block_until_ready(jax.jit(fill)(SMALL))
    report = watch.report
    with pytest.raises(KeyError), watch:
        raise KeyError

    assert report is not None
    assert watch.report is report


def test_traces_of_each_call_under_the_temporary_folder_are_kept_eight_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """capture="always" without a logdir keeps the last eight, too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = watch_hbm(lambda x: x + 1, capture="always")

    for _ in range(10):
        step(SMALL)

    assert len(list(tmp_path.glob("hbmwatch-*/plugins/profile/*"))) == 8
