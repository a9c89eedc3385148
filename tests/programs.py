"""Real programs, compiled but not run: for a TPU v5e, an H100 and the CPU.

`compiled("scanned", "tpu")` lowers a program for a platform, compiles it once per test run, and
gives the profile that holds it. Where the platform's compiler is not installed the test skips,
with the reason. On "tpu" all programs but `small` are too large for the device: a compile that
fails takes a tenth of the time of one that fits, and leaves the same profile.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.xspace import read_modules
from tests.sharing import once, uses_compiler

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
PLATFORMS = ("cpu", "tpu", "gpu")
# Compiler options for a step that a test runs a few times on the CPU, on small arrays.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
needs_xprof = pytest.mark.skipif(
    importlib.util.find_spec("xprof") is None, reason="xprof is not installed"
)


# --- the platforms --------------------------------------------------------------------------------


def why_not(platform: str) -> str | None:
    """Why programs cannot be compiled for a platform here; None where they can."""
    needs = {"cpu": (), "tpu": ("libtpu",), "gpu": ("jax_cuda13_plugin", "nvidia.cu13")}
    if platform != "cpu" and sys.platform != "linux":
        return f"the {platform.upper()} compiler runs on Linux only"
    for package in needs[platform]:
        try:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        except ModuleNotFoundError:
            return f"{package} is not installed"
    return None


def devices(platform: str) -> tuple[Any, ...]:
    """Four CPU devices, the four chips of a v5e:2x2, or one H100; skips without its compiler."""
    uses_compiler(platform)
    return _devices(platform)


@functools.cache
def _devices(platform: str) -> tuple[Any, ...]:
    if reason := why_not(platform):
        pytest.skip(reason)
    if platform == "cpu":
        return tuple(jax.devices("cpu"))
    from jax.experimental import topologies

    if platform == "tpu":
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    else:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="h100", target_config=H100, topology="1x1x1"
        )
    return tuple(topology.devices)


def array(platform: str, *shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument on the platform's first device."""
    sharding = SingleDeviceSharding(devices(platform)[0])
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def lower(platform: str, fun: Callable[..., Any], *args: Any, **jit: Any) -> Any:
    """Lower a function for the platform's first device."""
    out = SingleDeviceSharding(devices(platform)[0])
    return jax.jit(fun, out_shardings=out, **jit).lower(*args)


# --- the programs ---------------------------------------------------------------------------------

Builder = Callable[[str], Any]
PROGRAMS: dict[str, Builder] = {}


def program(builder: Builder) -> Builder:
    """Enter a builder in PROGRAMS, under its own name."""
    PROGRAMS[builder.__name__] = builder
    return builder


@program
def seed(platform: str) -> Any:
    """The program of OpenXLA's page on out-of-memory errors."""

    def oom() -> Any:
        a = jax.random.normal(jax.random.PRNGKey(1), (327680, 327680), dtype=jnp.bfloat16)
        return a @ a

    return lower(platform, oom)


@program
def train(platform: str) -> Any:
    """One SGD step of an 8-layer ReLU MLP, nothing donated."""
    return _train(platform)


@program
def donated(platform: str) -> Any:
    """The same, the weights donated."""
    return _train(platform, donate_argnums=0)


@program
def rematerialised(platform: str) -> Any:
    """The same, each layer under jax.checkpoint."""
    return _train(platform, wrap=jax.checkpoint)


def _train(platform: str, wrap: Callable[..., Any] = lambda fun: fun, **jit: Any) -> Any:
    @wrap
    def layer(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w)

    def loss(p: list[Any], x: Any) -> Any:
        for w in p:
            x = layer(x, w)
        return jnp.sum(x * x)

    def train_step(p: list[Any], x: Any) -> Any:
        grads = jax.grad(loss)(p, x)
        return [w - 0.1 * g for w, g in zip(p, grads, strict=True)]

    weights = [array(platform, 8192, 8192) for _ in range(8)]
    return lower(platform, train_step, weights, array(platform, 131072, 8192), **jit)


@program
def scanned(platform: str) -> Any:
    """The gradient through a lax.scan, whose residuals are stacked."""

    def loss(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ w), None

        x, _ = lax.scan(layer, x, w)
        return jnp.sum(x)

    w = array(platform, 16, 2048, 2048)
    return lower(platform, jax.grad(loss), w, array(platform, 131072, 2048))


@program
def looped(platform: str) -> Any:
    """A while loop with a cond in its body, over a large carry."""

    def step(x: Any) -> Any:
        def body(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            i, x = carry
            return i + 1, lax.cond(i % 2 == 0, lambda x: jnp.sin(x @ x), lambda x: x.T + 1, x)

        return lax.while_loop(lambda carry: carry[0] < 5, body, (0, x))

    return lower(platform, step, array(platform, 65536, 65536))


@program
def int4(platform: str) -> Any:
    """Weights of 4 bits, unpacked and multiplied."""

    def step(w: Any, x: Any) -> Any:
        return (x @ w.astype(jnp.bfloat16)).astype(jnp.int4), w + jnp.int4(1)

    w = array(platform, 65536, 65536, dtype=jnp.int4)
    return lower(platform, step, w, array(platform, 131072, 65536, dtype=jnp.bfloat16))


@program
def fp8(platform: str) -> Any:
    """Two kinds of 8-bit floats, and sums of them."""

    def step(x: Any, y: Any) -> Any:
        z = (x.astype(jnp.bfloat16) + y.astype(jnp.bfloat16)).astype(jnp.float8_e5m2)
        return z, jnp.cumsum(x.astype(jnp.float32), axis=1).astype(jnp.float8_e4m3fn)

    x = array(platform, 65536, 65536, dtype=jnp.float8_e4m3fn)
    return lower(platform, step, x, array(platform, 65536, 65536, dtype=jnp.float8_e5m2))


@program
def complex64(platform: str) -> Any:
    """Complex numbers, multiplied and sorted apart."""

    def step(x: Any) -> Any:
        y = x * jnp.conj(x[::-1])
        return jnp.cumsum(y, axis=0), jnp.real(y) > 0

    return lower(platform, step, array(platform, 32768, 65536, dtype=jnp.complex64))


@program
def padded(platform: str) -> Any:
    """Rows of three after a reshape, a gather and a segment sum: a TPU pads them."""

    def step(flat: Any, index: Any) -> Any:
        rows = flat.reshape(-1, 3)
        near = rows[index] - rows[:, None]
        return jax.ops.segment_sum(near.sum(1), index[:, 0], num_segments=rows.shape[0])

    flat = array(platform, 3 * 2**24)
    return lower(platform, step, flat, array(platform, 2**24, 8, dtype=jnp.int32))


@program
def convolved(platform: str) -> Any:
    """The gradient of a convolution with few channels."""

    def loss(kernel: Any, image: Any) -> Any:
        out = lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jax.nn.gelu(out))

    image = array(platform, 2048, 512, 512, 3)
    return lower(platform, jax.grad(loss, argnums=(0, 1)), array(platform, 3, 3, 3, 8), image)


@program
def small(platform: str) -> Any:
    """Two products that fit everywhere; on a TPU they are prefetched to VMEM."""

    def step(x: Any, y: Any) -> Any:
        return jnp.tanh(x @ y) @ x, jnp.sum(x + y)

    return lower(platform, step, array(platform, 2048, 2048), array(platform, 2048, 2048))


@program
def sharded(platform: str) -> Any:
    """A two-layer gradient on a mesh of all devices, the batch sharded, the weights replicated."""
    mesh = Mesh(np.array(devices(platform)), ("data",))
    batch = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())

    def loss(p: list[Any], x: Any) -> Any:
        for w in p:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    weights = [jax.ShapeDtypeStruct((8192, 8192), jnp.float32, sharding=whole)] * 2
    x = jax.ShapeDtypeStruct((2**20, 8192), jnp.float32, sharding=batch)
    return jax.jit(jax.grad(loss), out_shardings=whole).lower(weights, x)


# --- compiled -------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """The figures of an executable's memory_analysis(), under JAX's names."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int


@dataclass(frozen=True, eq=False)
class Compiled:
    """What a compile left: the module's name in the profile, its HloProto, the whole profile.

    Attributes:
        name: "jit_train_step(12)".
        hlo_proto: The serialized HloProto.
        xspace: What jax.profiler.trace wrote around the compile: the content of an .xplane.pb.
        memory: The Memory of the executable; None where the program did not fit.
    """

    name: str
    hlo_proto: bytes
    xspace: bytes
    memory: Any

    @functools.cached_property
    def program(self) -> Program:
        """The parsed module."""
        return parse_program(self.hlo_proto, self.name)


def compiled(name: str, platform: str) -> Compiled:
    """One of PROGRAMS, compiled for a platform under a profiler, once per test run."""
    devices(platform)
    if (name, platform) == ("complex64", "tpu"):
        pytest.skip("libtpu has crashed while it compiled this program, once in about ten runs")
    return _compiled(name, platform)


@functools.cache
def _compiled(name: str, platform: str) -> Compiled:
    make = functools.partial(PROGRAMS[name], platform)
    return once(f"{name}-{platform}", lambda: compile_lowered(make()))


def compile_lowered(lowered: Any) -> Compiled:
    """Compile anything that is lowered, under a profiler."""
    memory = None
    before = read_modules(_profile(lambda: None))

    def compile_it() -> None:
        nonlocal memory
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            analysis = lowered.compile().memory_analysis()
            memory = Memory(*(getattr(analysis, name) for name in Memory._fields))

    xspace = _profile(compile_it)
    after = read_modules(xspace)
    module = lowered.compiler_ir().operation.attributes["sym_name"].value
    named = [name for name in after if name.startswith(f"{module}(")]
    # libtpu's module is not new where the same program was compiled just before.
    name = next((name for name in named if name not in before), named[-1])
    return Compiled(name, after[name], xspace, memory)


def _profile(body: Callable[[], None]) -> bytes:
    """The .xplane.pb of a body that runs under jax.profiler.trace, all tracers off."""
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 0
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            body()
        (xplane,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        return xplane.read_bytes()
