"""How long does it take from the compiler's exception to ours, with the report?

The failure is explained several times, and the fastest is shown by phase: "capture" is the profiler
session that collects the programs from the runtime (XLA's own work), "read" finds the program and
its peak, "files" keeps the profile, "text" renders the report. Next to it is the time of XProf's
command, as a whole process, which prints the same peak from the same profile. Phases are in the
time of the thread, which other programs disturb less. "wall" is the fastest whole, "first time" the
first, which loads what a program does not need before it fails.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks._timing import table, versions
from hbmwatch import HbmOomError, OomReport, watch_hbm
from hbmwatch._explain import build, capture, conclude, errors, notes
from hbmwatch._jax import dump, profiler
from hbmwatch._jax.libtpu_environment import WITHOUT_TPU
from hbmwatch._report import report as reports
from hbmwatch._watch import guard, stages

RUNS = 7
ENVIRONMENT = {**WITHOUT_TPU, "TF_CPP_MIN_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3"}
# Each function is timed under the name by which its caller finds it.
PHASES: dict[str, list[tuple[Any, str]]] = {
    "capture": [(profiler, "collect"), (dump, "dump")],
    "read": [(capture, "choose_program"), (capture, "read_modules"), (build, "peak_summary")],
    "findings": [
        (conclude, "find_findings"),
        (conclude, "rollup"),
        (conclude, "with_roles"),
        (build, "breakdown"),
    ],
    "notes": [(notes, "notes"), (build, "device_memory")],
    "files": [(build, "keep")],
    "text": [(reports, "report_text"), (errors, "headline")],
}
WRAPPED = "raise_explained"
Program = Callable[[], Any]


# --- the programs ---------------------------------------------------------------------------------


def tiny() -> None:
    """Asks the CPU for a petabyte."""
    watch_hbm(lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1)(jnp.ones(8))


def seed() -> None:
    """The program of OpenXLA's page on out-of-memory errors."""

    def oom() -> jax.Array:
        a = jax.random.normal(jax.random.PRNGKey(1), (327680, 327680), dtype=jnp.bfloat16)
        return a @ a

    watch_hbm(oom, out_shardings=_device_zero()).lower().compile()


def dense(layers: int) -> None:
    """One SGD step of a ReLU MLP."""

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in params:
            x = jax.nn.relu(x @ w)
        return jnp.sum(x * x)

    params = [_array(8192, 8192) for _ in range(layers)]
    _compile_step(loss, params, _array(131072, 8192))


def transformer(layers: int) -> None:
    """One SGD step of a transformer, its layers unrolled."""
    d = 1024
    shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, 4 * d)}
    params = [
        {name: _array(*shape) for name, shape in {**shapes, "down": (4 * d, d)}.items()}
        for _ in range(layers)
    ]
    _compile_step(_transformer_loss, params, _array(64, 1024, d))


def _transformer_loss(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    def normed(x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    for p in params:
        q, k, v = ((normed(x) @ p[name]).reshape(*x.shape[:2], 8, -1) for name in ("q", "k", "v"))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ p["o"]
        x = x + jax.nn.gelu(normed(x) @ p["up"]) @ p["down"]
    return jnp.mean(x**2)


def _compile_step(loss: Callable[..., jax.Array], params: Any, x: Any) -> None:
    def train_step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    watch_hbm(train_step, out_shardings=_device_zero()).lower(params, x).compile()


@functools.cache
def _device_zero() -> SingleDeviceSharding:
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return SingleDeviceSharding(topology.devices[0])


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_device_zero())


PROGRAMS: dict[str, Program] = {
    "tiny, live on CPU": tiny,
    "seed, v5e": seed,
    "8 dense layers, v5e": functools.partial(dense, 8),
    "48-layer transformer, v5e": functools.partial(transformer, 48),
    "200-layer transformer, v5e": functools.partial(transformer, 200),
}


# --- the measurement ------------------------------------------------------------------------------


class Clock:
    """Seconds by phase; the time of an inner phase does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running: list[str] = []
        self.since = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self.running.append(name)
        try:
            yield
        finally:
            self._charge()
            self.running.pop()

    def _charge(self) -> None:
        now = time.thread_time()
        if self.running:
            self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def watch(self, module: Any, name: str, phase: str) -> None:
        """Charge every call of a module's function to a phase."""
        fun = getattr(module, name)

        @functools.wraps(fun)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return fun(*args, **kwargs)

        setattr(module, name, timed)


CLOCK = Clock()


def explained(raise_explained: Callable[..., Any]) -> Callable[..., Any]:
    """raise_explained, called several times for one failure; the times of the fastest are kept."""

    def repeated(error: Exception, *rest: Any) -> None:
        timings, walls = [], []
        for _ in range(RUNS):
            CLOCK.seconds = defaultdict(float)
            start = time.perf_counter()
            try:
                with CLOCK.phase("other"):
                    raise_explained(error, *rest)
            except HbmOomError as oom:
                report = oom.report
            walls.append(time.perf_counter() - start)
            timings.append(dict(CLOCK.seconds))
        best = min(timings, key=lambda timing: sum(timing.values()))
        raise Measured(best, walls, report)

    return repeated


class Measured(Exception):
    """How long explaining a failure took, by phase and in wall time, and the report."""

    def __init__(self, seconds: dict[str, float], walls: list[float], report: OomReport) -> None:
        super().__init__()
        self.seconds = seconds
        self.walls = walls
        self.report = report


def measure(program: Program) -> Measured:
    """Run a program out of memory."""
    try:
        program()
    except Measured as measured:
        return measured
    raise AssertionError("the program did not run out of memory")


def xprof_seconds(logdir: str) -> float:
    """What XProf's command takes as a whole process, at best, without its caches.

    It keeps one next to the profile, and one by the profile's content in the temporary folder.
    """
    best = float("inf")
    for number in range(3):
        (file, *_) = sorted(Path(logdir).rglob("*.xplane.pb"))
        alone = Path(logdir, str(number), *file.relative_to(logdir).parts)
        alone.parent.mkdir(parents=True)
        shutil.copy(file, alone)
        xprof = Path(sys.executable).with_name("xprof")
        fresh = os.environ | {"TMPDIR": str(alone.parent)}
        start = time.perf_counter()
        subprocess.run(
            [xprof, "get_peak_allocations", alone.parents[3]],
            check=True,
            capture_output=True,
            env=fresh,
        )
        best = min(best, time.perf_counter() - start)
    return best


def main(names: list[str]) -> None:
    """Print a row for each program, or for those that begin with one of `names`."""
    os.environ |= ENVIRONMENT
    jax.config.update("jax_platforms", "cpu")
    for phase, functions in PHASES.items():
        for module, name in functions:
            CLOCK.watch(module, name, phase)
    for user in (guard, stages):
        setattr(user, WRAPPED, explained(getattr(user, WRAPPED)))
    print(f"{__doc__}\n{versions('jax', 'jaxlib', 'libtpu', 'xprof')}, {os.cpu_count()} cores\n")
    rows = []
    for name, program in PROGRAMS.items():
        if names and not name.startswith(tuple(names)):
            continue
        if "v5e" in name and importlib.util.find_spec("libtpu") is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder
            rows.append(_row(name, measure(program)))
            tempfile.tempdir = None
    sums = ("all", "all but capture", "wall", "first time", "xprof", "profile")
    print(table(("ms", *PHASES, "other", *sums), rows))


def _row(name: str, measured: Measured) -> list[str]:
    seconds, report = measured.seconds, measured.report
    total = sum(seconds.values())
    assert report.logdir is not None
    shown = [seconds.get(phase, 0.0) for phase in (*PHASES, "other")]
    shown += [total, total - seconds["capture"], min(measured.walls), measured.walls[0]]
    shown.append(xprof_seconds(report.logdir))
    size = max(file.stat().st_size for file in Path(report.logdir).rglob("*.xplane.pb"))
    return [name, *(f"{1e3 * second:.1f}" for second in shown), f"{size / 2**20:.2f} MiB"]


if __name__ == "__main__":
    main(sys.argv[1:])
