"""The watch on the real TPU compiler: OpenXLA's page and a train step, out of memory for real."""

from __future__ import annotations

import concurrent.futures
import gzip
import inspect
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hbmwatch import HbmOomError, PeakSummary, load_peak_summary, watch_hbm
from tests import programs

pytestmark = pytest.mark.tpu

GIB = 2**30


def oom() -> jax.Array:
    """The program of OpenXLA's page."""
    a = jax.random.normal(jax.random.PRNGKey(1), (327680, 327680), dtype=jnp.bfloat16)
    return a @ a


def train(p: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """One SGD step of an 8-layer MLP, nothing donated."""

    def loss(p: list[jax.Array]) -> jax.Array:
        hidden = x
        for w in p:
            hidden = jax.nn.relu(hidden @ w)
        return jnp.mean(hidden**2)

    return [w - 0.1 * d for w, d in zip(p, jax.grad(loss)(p), strict=True)]


def on_device() -> SingleDeviceSharding:
    """The first chip of a v5e:2x2; skips where there is no libtpu."""
    return SingleDeviceSharding(programs.devices("tpu")[0])


def line_of(fun: Callable[..., Any], text: str) -> str:
    """ "file.py:LINE" of the line of `fun` that holds `text`."""
    lines, first = inspect.getsourcelines(fun)
    offset = next(n for n, line in enumerate(lines) if text in line)
    return f"{Path(__file__).name}:{first + offset}"


def failing(call: Callable[[], Any]) -> HbmOomError:
    """The HbmOomError that a call raises."""
    with pytest.raises(HbmOomError) as caught:
        call()
    return caught.value


def failing_page(logdir: Path) -> HbmOomError:
    """The page's program, out of memory."""
    step = watch_hbm(oom, logdir=logdir, out_shardings=on_device())
    return failing(lambda: step.lower().compile())


@pytest.fixture(scope="module")
def train_oom(tmp_path_factory: pytest.TempPathFactory) -> HbmOomError:
    """The train step, out of memory once for all tests."""
    weights = [programs.array("tpu", 8192, 8192)] * 8
    batch = programs.array("tpu", 131072, 8192)
    logdir = tmp_path_factory.mktemp("train")
    step = watch_hbm(train, logdir=logdir, out_shardings=on_device())
    return failing(lambda: step.lower(weights, batch).compile())


def peak_of(error: HbmOomError) -> PeakSummary:
    """The summary, which must be there with nothing missing."""
    assert error.report.missing == ()
    assert error.summary is not None
    return error.summary


@pytest.mark.slow
def test_the_page_explains_itself(tmp_path: Path) -> None:
    """OpenXLA's program has a peak of 300 GiB, of two buffers whose lines are named."""
    error = failing_page(tmp_path)
    summary = peak_of(error)

    assert summary.peak_bytes == 300 * GIB
    limit = error.message.limit_bytes
    assert limit is not None
    assert abs(limit - 15.75 * GIB) <= error.message.resolution_bytes["limit_bytes"] / 2
    assert [(op.size_bytes, op.source) for op in summary.by_size()] == [
        (200 * GIB, line_of(oom, "a @ a")),
        (100 * GIB, line_of(oom, "random.normal")),
    ]
    assert error.report.device is not None
    assert error.report.device.device_kind == "TPU v5 lite"


@contextmanager
def users_trace(folder: Path) -> Iterator[None]:
    """jax.profiler.trace, as the page has it."""
    with jax.profiler.trace(str(folder)):
        yield
    assert [file.stat().st_size > 0 for file in folder.rglob("*.xplane.pb")] == [True]


@contextmanager
def raw_session(folder: Path) -> Iterator[None]:
    """A profiler session that JAX does not know of, as a profiler server opens."""
    from jax._src.lib import _profiler

    session = _profiler.ProfilerSession()
    yield
    assert b"a mark of the user's" in session.stop()


@pytest.mark.slow
@pytest.mark.parametrize("profiler", [users_trace, raw_session])
def test_the_users_profiler_is_left_alone(profiler: Callable[[Path], Any], tmp_path: Path) -> None:
    """With the user's profiler session open, the peak is found, and their profile is complete."""
    with profiler(tmp_path / "users"):
        with jax.profiler.TraceAnnotation("a mark of the user's"):
            error = failing_page(tmp_path / "ours")

    assert peak_of(error).peak_bytes == 300 * GIB
    summary = load_peak_summary(tmp_path / "ours", module="jit_oom")
    assert summary == error.summary
    with users_trace(tmp_path / "later"):
        jnp.ones(2).block_until_ready()


@pytest.mark.slow
def test_the_pages_recipe_with_the_watch_inside(tmp_path: Path) -> None:
    """`@jax.profiler.trace` above `@watch_hbm` gives the peak, and the page's profile."""
    step = watch_hbm(oom, logdir=tmp_path / "ours", out_shardings=on_device())
    recipe = jax.profiler.trace(str(tmp_path / "page"))(lambda: step.lower().compile())

    error = failing(recipe)

    assert peak_of(error).peak_bytes == 300 * GIB
    assert len(list((tmp_path / "page").rglob("*.xplane.pb"))) == 1


def test_a_train_step_is_what_xprof_says(train_oom: HbmOomError) -> None:
    """Peak and every buffer, in order, equal XProf's Memory Viewer of the kept profile."""
    summary = peak_of(train_oom)
    logdir = train_oom.report.logdir
    assert logdir is not None

    xprofs = load_peak_summary(logdir, module="jit_train", reader="xprof")

    assert summary.ops == xprofs.ops
    assert summary.peak_bytes == xprofs.peak_bytes
    assert summary.total_allocation_bytes == xprofs.total_allocation_bytes
    assert summary.heap_bytes.tolist() == xprofs.heap_bytes.tolist()
    sizes = [[op.size_bytes for op in of.by_size()] for of in (summary, xprofs)]
    assert sizes[0] == sizes[1]


def test_a_train_steps_arguments_carry_their_paths(train_oom: HbmOomError) -> None:
    """Arguments are named by their pytree paths, with their sizes from the shapes."""
    paths = {op.path: op.size_bytes for op in peak_of(train_oom).ops if op.path}

    weights = {f"p[{n}]": 4 * 8192 * 8192 for n in range(8)}
    assert paths == {**weights, "x": 4 * 131072 * 8192}


def test_the_totals_are_those_of_xprofs_command(train_oom: HbmOomError) -> None:
    """`xprof get_peak_allocations` prints the same total for the module."""
    summary = peak_of(train_oom)
    xprof = str(Path(sys.executable).with_name("xprof"))
    command = [xprof, "get_peak_allocations", str(train_oom.report.logdir)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {m["module_name"]: m for m in json.loads(ran.stdout)["modules"]}

    module = modules[f"jit_train({summary.program_id})"]
    assert module["total_hbm_mib"] == pytest.approx(summary.total_allocation_bytes / 2**20)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def xprof_server(logdir: str) -> Iterator[str]:
    """A real XProf server on a log folder."""
    ports = [free_port(), free_port()]
    command = [str(Path(sys.executable).with_name("xprof")), f"--logdir={logdir}"]
    command += [f"--port={ports[0]}", f"--grpc_port={ports[1]}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{ports[0]}/data/plugin/profile"
    finally:
        process.terminate()
        process.wait(timeout=30)


def ask(url: str, **query: Any) -> Any:
    """The server's JSON answer; waits for the server to come up."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}") as answer:
                data = answer.read()
                is_packed = answer.headers.get("Content-Encoding") == "gzip"
                return json.loads(gzip.decompress(data) if is_packed else data)
        except urllib.error.URLError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {url}")


@pytest.mark.slow
def test_the_run_opens_in_a_real_xprof_server(train_oom: HbmOomError, tmp_path: Path) -> None:
    """The server lists each run with all of its hosts, and its Memory Viewer shows our peak."""
    summary = peak_of(train_oom)
    module = f"jit_train({summary.program_id})"
    kept = Path(str(train_oom.report.run))
    shutil.copytree(kept, tmp_path / "plugins" / "profile" / kept.name)
    (profile,) = kept.glob("*.xplane.pb")
    of_hosts = tmp_path / "plugins" / "profile" / "2026_01_01_00_00_00"
    of_hosts.mkdir()
    names = [f"host-{number}" for number in range(3)]
    for name in names:
        shutil.copy(profile, of_hosts / f"{name}.xplane.pb")
    with xprof_server(str(tmp_path)) as server:
        runs = ask(f"{server}/runs")
        # The page asks for the tools first; XProf extracts the modules then.
        tools = [ask(f"{server}/run_tools", run=run) for run in sorted(runs)]
        hosts = [ask(f"{server}/hosts", run=run, tag="memory_viewer") for run in sorted(runs)]
        viewers = [
            ask(
                f"{server}/data",
                run=run,
                tag="memory_viewer",
                host=host["hostname"],
                module_name=module,
                memory_space=0,
            )
            for run, (*_, host) in zip(sorted(runs), hosts, strict=True)
        ]

    assert sorted(runs) == [of_hosts.name, kept.name]
    assert all("memory_viewer" in of_run for of_run in tools)
    own = profile.name.removesuffix(".xplane.pb")
    assert [sorted(host["hostname"] for host in of_run) for of_run in hosts] == [names, [own]]
    for viewer in viewers:
        assert viewer["peakHeapMib"] * 2**20 == summary.peak_bytes
        assert len(viewer["maxHeap"]) == len(summary.ops)


def test_a_mesh_is_reported_per_device(tmp_path: Path) -> None:
    """On four chips the sizes are per device, and the report says on how many."""
    mesh = Mesh(programs.devices("tpu"), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((4 * 131072, 32768), jnp.float32, sharding=rows)
    step = watch_hbm(
        lambda x: jnp.sin(x).T @ x, logdir=tmp_path, in_shardings=rows, out_shardings=None
    )

    error = failing(lambda: step.lower(x).compile())

    summary = peak_of(error)
    assert error.report.device is not None and error.report.device.device_count == 4
    assert {op.size_bytes for op in summary.ops if op.path == "x"} == {4 * 131072 * 32768}
    assert "on each of 4 devices" in str(error.report)


@pytest.mark.slow
def test_a_pallas_kernel_out_of_vmem_is_not_explained_by_hbm(tmp_path: Path) -> None:
    """A VMEM overflow is an OOM of VMEM, and no table of HBM is shown as its cause."""
    pl = pytest.importorskip("jax.experimental.pallas")

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    def f(x: jax.Array) -> Any:
        block = pl.BlockSpec((4096, 4096), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out, grid=2, in_specs=[block], out_specs=block)(x)

    step = watch_hbm(f, logdir=tmp_path, out_shardings=on_device())

    error = failing(lambda: step.lower(programs.array("tpu", 8192, 4096)).compile())

    assert error.message.memory_space == "vmem"
    assert error.summary is None
    assert "vmem" in error.report.missing[0]


@pytest.mark.slow
def test_one_name_compiled_in_several_threads_is_not_mixed_up(tmp_path: Path) -> None:
    """libtpu keeps the last compile alone; each failure has the peak of its own program."""

    def step(x: jax.Array) -> jax.Array:
        return (x @ x.T) @ x

    def fail(rows: int) -> tuple[int, int]:
        x = programs.array("tpu", rows, 1024)
        watched = watch_hbm(step, logdir=tmp_path, out_shardings=on_device())
        error = failing(lambda: watched.lower(x).compile())
        used = error.message.used_bytes
        assert used is not None
        off = abs(peak_of(error).total_allocation_bytes - used)
        return rows, off - error.message.resolution_bytes.get("used_bytes", 0)

    sizes = [131072, 163840, 196608]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(fail, sizes))

    assert [rows for rows, off in results if off > 0] == []
