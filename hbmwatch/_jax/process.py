"""Which process of a distributed job this is, as JAX or its launcher numbers it."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hbmwatch._records.process import Process

# Where a launcher puts a process's rank. How many processes belong together, only JAX knows.
LAUNCHERS: Mapping[str, str] = {
    "SLURM": "SLURM_PROCID",
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "MPICH and Intel MPI": "PMI_RANK",
    "torchrun and Ray Train": "RANK",
    "a TPU node pool of GKE": "TPU_WORKER_ID",
    "an indexed job of Kubernetes, JobSet": "JOB_COMPLETION_INDEX",
}


def this_process() -> Process:
    """This process, now. No backend is started for it, and no other process is asked."""
    devices: Sequence[Any] = ()
    index, count = 0, 1
    if backends_are_initialized():
        index, count = jax.process_index(), jax.process_count()
        devices = jax.local_devices()
    if count == 1:
        index = _rank(os.environ)
    return Process(
        index=index,
        count=count,
        host=_host(),
        pid=os.getpid(),
        time=_now(),
        device_ids=tuple(device.id for device in devices),
        local_device_ids=tuple(_numbers(devices, "local_hardware_id")),
        coords=tuple(tuple(device.coords) for device in devices if hasattr(device, "coords")),
        slice_index=next(iter(_numbers(devices, "slice_index")), None),
    )


def backends_are_initialized() -> bool:
    """Whether JAX has started a backend, so that to ask for its devices starts none."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return True  # as always when a program ran


def _numbers(devices: Sequence[Any], name: str) -> list[int]:
    """An attribute of the devices, where they have it."""
    found = [getattr(device, name, None) for device in devices]
    return [number for number in found if isinstance(number, int)]


def _rank(environment: Mapping[str, str]) -> int:
    """The rank that the first launcher found gives; 0 without a launcher."""
    for name in LAUNCHERS.values():
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return 0


def _host() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return ""


def _now() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
