"""Devices that a step can be compiled for, named by a word, and what one of them offers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbmwatch._jax.device import devices_of
from hbmwatch._preflight.gpus import GPUS, target_config

MIB = 2**20
# What JAX's allocator takes of a GPU's memory at the start, unless it is told otherwise.
MEMORY_FRACTION = 0.75


@dataclass(frozen=True, slots=True)
class _Tpu:
    """A TPU generation.

    Attributes:
        kind: The device kind in JAX.
        rank: How many dimensions its topologies have.
        limits: MiB that the compiler lets a program use, by the version of libtpu: where its checks
            turn, found by compiling.
        cores: JAX devices of one chip.
        options: Whatever else its topologies need.
    """

    kind: str
    rank: int
    limits: Mapping[str, int]
    cores: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


_MEGACORE = {"chip_config_name": "megacore"}  # as JAX runs a v4: one device a chip
TPUS = {
    "v4": _Tpu("TPU v4", 3, {"0.0.42": 31485, "0.0.50": 31485}, options=_MEGACORE),
    "v5e": _Tpu("TPU v5 lite", 2, {"0.0.42": 16126, "0.0.50": 16126}),
    "v5p": _Tpu("TPU v5", 3, {"0.0.42": 98041, "0.0.50": 98025}),
    "v6e": _Tpu("TPU v6 lite", 2, {"0.0.42": 31996, "0.0.50": 31992}),
    "tpu7x": _Tpu("TPU7x", 3, {"0.0.42": 97020}, cores=2),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a step is to be compiled for.

    Attributes:
        name: The word, as it was given ("v5e:4x4").
        platform: JAX's name of the platform: "tpu", "cuda" or "cpu".
        device_count: How many devices it has.
        limit_bytes: What one device offers to a program; None where that is not known.
        limit_note: What the limit rests on, where no device has confirmed it; "" where it is exact.
        device_kind: One device, as JAX names it.
        topology: XLA's name of the topology; "" for the CPU.
        topology_options: Whatever else makes the topology.
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
    """The target that is meant.

    Args:
        on: A word ("v5e", "v5e:4x4", "h100:8"), a jax device, several of them, or a mesh; None is
            the backend at hand.
        memory_fraction: What share of a GPU's memory a program gets; None is what JAX takes.

    Raises:
        ValueError: No such target.
        ImportError: The compiler of this target is not installed.
    """
    if isinstance(on, Target):
        return on
    if isinstance(on, str):
        return _named(on, memory_fraction)
    return _of_devices(_devices(on), memory_fraction)


def target_of(lowered: Any, memory_fraction: float | None = None) -> Target:
    """The target that a lowered step lies on: a backend at hand, or the user's own topology."""
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
        f"no target {word!r}: choose one of {', '.join((*TPUS, *GPUS))}, with a shape where it is "
        "more than one chip (v5e:4x4, h100:8)"
    )


def _require(extra: str, *packages: str) -> None:
    """One of the packages, without importing it."""
    if extra == "tpu" and os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")):
        return
    for package in packages:
        try:
            if importlib.util.find_spec(package) is not None:
                return
        except ModuleNotFoundError:  # of the package's parent
            continue
    where = (
        "" if sys.platform == "linux" else " (on Linux: the compiler exists for no other system)"
    )
    raise ImportError(
        f"the {extra.upper()} compiler is not installed: pip install 'hbmwatch[{extra}]'{where}"
    )


def _tpu(kind: str, shape: str, word: str) -> Target:
    tpu = TPUS[kind]
    sizes = _sizes(shape or "x".join("1" * tpu.rank), word)
    if len(sizes) != tpu.rank:
        example = "x".join("2" * tpu.rank)
        raise ValueError(
            f"{word!r}: a {kind} topology has {tpu.rank} dimensions ({kind}:{example})"
        )
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


def _limit(tpu: _Tpu) -> tuple[int, str]:
    """The limit by the libtpu that is installed, and what it rests on where that is another one."""
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    for known, mib in tpu.limits.items():
        if version == known or version.startswith(f"{known}."):
            return mib * MIB, ""
    known, mib = next(iter(tpu.limits.items()))
    return mib * MIB, f"as of libtpu {known}"


def _gpu(kind: str, shape: str, word: str, memory_fraction: float | None) -> Target:
    gpu = GPUS[kind]
    sizes = _sizes(shape or "1", word)
    if len(sizes) != 1:
        raise ValueError(f"{word!r}: GPUs are counted ({kind}:8)")
    fraction = _fraction(memory_fraction)
    return Target(
        name=word.strip().lower(),
        platform="cuda",
        device_count=sizes[0],
        limit_bytes=int(gpu.memory_bytes * fraction),
        limit_note=f"{fraction:g} of the card's memory, assumed",
        device_kind=gpu.kind,
        topology=kind,
        topology_options={"target_config": target_config(gpu), "topology": f"1x{sizes[0]}x1"},
    )


def _fraction(given: float | None) -> float:
    """The share of a GPU's memory that JAX's allocator takes."""
    set_ = os.environ.get("XLA_CLIENT_MEM_FRACTION") or os.environ.get(
        "XLA_PYTHON_CLIENT_MEM_FRACTION"
    )
    fraction = given if given is not None else float(set_ or MEMORY_FRACTION)
    if not 0 < fraction <= 1:
        raise ValueError(f"memory_fraction is a share of the card's memory, not {fraction:g}")
    return fraction


def _sizes(shape: str, word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise ValueError(f"{word!r}: {shape!r} is no shape of a topology (4x4)")
    return tuple(map(int, shape.split("x")))


# --- devices --------------------------------------------------------------------------------------


def _devices(on: Any) -> list[Any]:
    """The devices of a mesh, of a list, or of the backend at hand."""
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
    if platform == "cpu":
        return Target("cpu", "cpu", len(devices), device_kind=kind)
    if platform == "tpu":
        name = next((name for name, tpu in TPUS.items() if tpu.kind == kind), None)
        if name is not None:
            return _named(f"{name}:{_bounds(devices, TPUS[name].rank)}", memory_fraction)
    name = next((name for name, gpu in GPUS.items() if gpu.kind == kind), None)
    if name is not None:
        return _named(f"{name}:{len(devices)}", memory_fraction)
    raise ValueError(f"no target is known for the device kind {kind!r}: name one with on=...")


def _bounds(devices: list[Any], rank: int) -> str:
    """The smallest topology from the origin that holds all of the devices."""
    coordinates = [tuple(device.coords) for device in devices]
    return "x".join(str(max(one[axis] for one in coordinates) + 1) for axis in range(rank))
