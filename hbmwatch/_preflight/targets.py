"""The devices that a step can be compiled for, by name, and how much memory one of them has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import numbers
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbmwatch._jax.device import devices_of
from hbmwatch._preflight.gpus import GPUS, target_config

MIB = 2**20
# The share of a GPU's memory that JAX's allocator reserves at the start by default.
MEMORY_FRACTION = 0.75
_FRACTION_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_MOST_GPUS = 65536


@dataclass(frozen=True, slots=True)
class _Tpu:
    """A TPU generation.

    Attributes:
        kind: The device kind in JAX.
        pod: The chips of the largest slice in each dimension, ascending. libtpu aborts the process
            where a slice is larger.
        limits: MiB that the compiler lets a program use, by libtpu version, the newest one last.
            Measured: a program of this size compiles, and a larger one does not.
        cores: JAX devices per chip.
        options: Other options that its topologies need.
    """

    kind: str
    pod: tuple[int, ...]
    limits: Mapping[str, int]
    cores: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """How many dimensions its topologies have."""
        return len(self.pod)

    @property
    def newest_limit(self) -> tuple[int, str]:
        """The bytes with the newest libtpu that was measured, and a note that names it."""
        *_, (version, mib) = self.limits.items()
        return mib * MIB, f"measured with libtpu {version}"


_MEGACORE = {"chip_config_name": "megacore"}  # as JAX runs a v4: one device per chip
TPUS = {
    "v4": _Tpu("TPU v4", (16, 16, 16), {"0.0.42": 31485, "0.0.50": 31485}, options=_MEGACORE),
    "v5e": _Tpu("TPU v5 lite", (16, 16), {"0.0.42": 16126, "0.0.50": 16126}),
    "v5p": _Tpu("TPU v5", (16, 20, 28), {"0.0.42": 98041, "0.0.50": 98025}),
    "v6e": _Tpu("TPU v6 lite", (16, 16), {"0.0.42": 31996, "0.0.50": 31992}),
    "tpu7x": _Tpu("TPU7x", (16, 24, 24), {"0.0.42": 97020}, cores=2),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a step is compiled for.

    Attributes:
        name: The name that was given ("v5e:4x4").
        platform: JAX's name of the platform: "tpu", "cuda" or "cpu".
        device_count: How many devices it has.
        limit_bytes: The bytes that a program can use on one device; None if unknown.
        limit_note: Where the limit comes from, if no device has confirmed it; "" if it is exact.
        device_kind: The kind of device, as JAX names it.
        topology: XLA's name of the topology; "" for the CPU.
        topology_options: Other options of the topology.
    """

    name: str
    platform: str
    device_count: int
    limit_bytes: int | None = None
    limit_note: str = ""
    device_kind: str = ""
    topology: str = ""
    topology_options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def resolve(on: Any = None, memory_fraction: float | None = None) -> Target:
    """The target that `on` names.

    Args:
        on: A name ("v5e", "v5e:4x4", "h100:8"), a jax device, several devices, or a mesh; None:
            JAX's default devices.
        memory_fraction: The share of a GPU's memory that a program gets; None: the share that JAX
            reserves.

    Raises:
        ValueError: The target is unknown.
        ImportError: The compiler of this target is not installed.
    """
    if isinstance(on, Target):
        return on
    if isinstance(on, str):
        return _named(on, memory_fraction)
    return _of_devices(_devices(on), memory_fraction)


def memory_of(device_type: str) -> tuple[str, int, str] | None:
    """JAX's name of a TPU, the bytes that a program can use on it, and where these are from.

    Args:
        device_type: What XProf calls it ("TPU v6 Lite").

    Returns:
        None if it is not a TPU whose limit was measured.
    """
    for tpu in TPUS.values():
        if tpu.kind.casefold() == device_type.casefold():
            return tpu.kind, *tpu.newest_limit
    return None


def target_of(lowered: Any, memory_fraction: float | None = None) -> Target:
    """The target that a lowered step is placed on: JAX's devices, or the user's own topology."""
    devices = devices_of(lowered, ())
    return resolve(devices or None, memory_fraction)


def _named(word: str, memory_fraction: float | None) -> Target:
    kind, _, shape = word.strip().lower().partition(":")
    if kind in TPUS:
        _require("tpu", "libtpu")
        return _tpu(kind, shape, word)
    if kind in GPUS:
        _require("gpu", "jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
        return _gpu(kind, shape, word, memory_fraction)
    raise ValueError(
        f"unknown target {word!r}: choose one of {', '.join((*TPUS, *GPUS))}, with a shape if it "
        "has more than one chip (v5e:4x4, h100:8)"
    )


def _require(extra: str, *packages: str) -> None:
    """Raise ImportError unless one of the packages is installed; imports none of them."""
    if extra == "tpu" and os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")):
        return
    for package in packages:
        try:
            if importlib.util.find_spec(package) is not None:
                return
        except ModuleNotFoundError:  # the parent package is missing
            continue
    where = (
        ""
        if sys.platform == "linux"
        else " (on Linux only: there is no build of it for other systems)"
    )
    raise ImportError(
        f"the {extra.upper()} compiler is not installed: pip install 'hbmwatch[{extra}]'{where}"
    )


def _tpu(kind: str, shape: str, word: str) -> Target:
    tpu = TPUS[kind]
    sizes = _slice(kind, shape or "x".join("1" * tpu.rank), word)
    limit, note = _limit(tpu)
    options = dict(tpu.options)
    if math.prod(sizes) == 1:  # libtpu takes a whole host otherwise
        options |= {"chips_per_host_bounds": [1, 1, 1], "num_slices": 1}
    return Target(
        name=word.strip().lower(),
        platform="tpu",
        device_count=math.prod(sizes) * tpu.cores,
        limit_bytes=limit,
        limit_note=note,
        device_kind=tpu.kind,
        topology=f"{kind}:{'x'.join(map(str, sizes))}",
        topology_options=options,
    )


def _slice(kind: str, shape: str, word: str) -> tuple[int, ...]:
    """The chips of a slice in each dimension.

    Raises:
        ValueError: There is no such slice.
    """
    pod, sizes = TPUS[kind].pod, _sizes(shape, word)
    if len(sizes) != len(pod):
        example = "x".join("2" * len(pod))
        raise ValueError(
            f"{word!r}: a {kind} topology has {len(pod)} dimensions ({kind}:{example})"
        )
    if any(size > most for size, most in zip(sorted(sizes), pod)):
        most = "x".join(map(str, pod))
        raise ValueError(f"{word!r}: the largest slice of {kind} is {kind}:{most}")
    if math.prod(sizes) > 1 and (sizes[0] % 2 or sizes[1] % 2):
        raise ValueError(
            f"{word!r}: a slice of more than one chip consists of whole hosts of 2x2 chips, so "
            "that its first two dimensions are even"
        )
    return sizes


def _limit(tpu: _Tpu) -> tuple[int, str]:
    """The limit in the installed libtpu; if that was not measured, the newest one with a note."""
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    for known, mib in tpu.limits.items():
        if version == known or version.startswith(f"{known}."):
            return mib * MIB, ""
    return tpu.newest_limit


def _gpu(kind: str, shape: str, word: str, memory_fraction: float | None) -> Target:
    gpu = GPUS[kind]
    sizes = _sizes(shape or "1", word)
    if len(sizes) != 1:
        raise ValueError(f"{word!r}: give a number of GPUs ({kind}:8), not a shape")
    if sizes[0] > _MOST_GPUS:
        raise ValueError(f"{word!r}: give at most {_MOST_GPUS} GPUs")
    fraction = _fraction(memory_fraction)
    return Target(
        name=word.strip().lower(),
        platform="cuda",
        device_count=sizes[0],
        limit_bytes=int(gpu.memory_bytes * fraction),
        limit_note=f"assumed: {fraction:g} of the card's memory",
        device_kind=gpu.kind,
        topology=kind,
        topology_options={"target_config": target_config(gpu), "topology": f"1x{sizes[0]}x1"},
    )


def _fraction(given: float | None) -> float:
    """The share of a GPU's memory that JAX's allocator reserves."""
    if given is not None:
        return check_fraction("memory_fraction", given)
    name = next((one for one in _FRACTION_VARIABLES if os.environ.get(one)), None)
    if name is None:
        return MEMORY_FRACTION
    text = os.environ[name]
    try:
        return check_fraction("", float(text))
    except ValueError:
        return check_fraction(name, text)


def check_fraction(name: str, value: Any) -> float:
    """The share, if it is one.

    Raises:
        ValueError: It is not above 0 and at most 1.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number above 0 and at most 1, not {value!r}")
    return float(value)


def _sizes(shape: str, word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise ValueError(f"{word!r}: {shape!r} is not the shape of a topology (4x4)")
    return tuple(map(int, shape.split("x")))


# --- devices --------------------------------------------------------------------------------------


def _devices(on: Any) -> list[Any]:
    """The devices of a mesh or a list; for None, JAX's default devices."""
    import jax

    if on is None:
        return list(jax.devices())
    found = getattr(on, "devices", on)  # a mesh, or a topology
    if hasattr(found, "flatten"):
        found = found.flatten()
    devices = list(found) if isinstance(found, Sequence) or hasattr(found, "tolist") else [found]
    if not devices or not all(hasattr(one, "device_kind") for one in devices):
        raise ValueError(f"on={on!r} is neither a target nor jax devices")
    return devices


def _of_devices(devices: list[Any], memory_fraction: float | None) -> Target:
    platform, kind = devices[0].platform, devices[0].device_kind
    if {(one.platform, one.device_kind) for one in devices} != {(platform, kind)}:
        kinds = ", ".join(sorted({one.device_kind for one in devices}))
        raise ValueError(f"one target has devices of one kind, not of several ({kinds})")
    if platform == "cpu":
        return Target("cpu", "cpu", len(devices), device_kind=kind)
    if platform == "tpu":
        name = next((name for name, tpu in TPUS.items() if tpu.kind == kind), None)
        if name is not None:
            return _named(f"{name}:{_bounds(devices, TPUS[name].rank)}", memory_fraction)
    name = next((name for name, gpu in GPUS.items() if gpu.kind == kind), None)
    if name is not None:
        return _named(f"{name}:{len(devices)}", memory_fraction)
    raise ValueError(f"no known target has the device kind {kind!r}: name a target with on=...")


def _bounds(devices: list[Any], rank: int) -> str:
    """The smallest topology that can hold the devices: one chip, or whole hosts of 2x2 chips."""
    axes = list(zip(*(device.coords for device in devices)))[:rank]
    sizes = [max(axis) - min(axis) + 1 for axis in axes]
    if math.prod(sizes) > 1:
        sizes = [size + size % 2 if axis < 2 else size for axis, size in enumerate(sizes)]
    return "x".join(map(str, sizes))
