"""Which process of a distributed job this is, as JAX or its launcher numbers it."""

from __future__ import annotations

import datetime
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hbmwatch._records.process import Process

# Where a launcher puts a process's rank. How many processes belong together, only JAX knows. One
# launcher starts another (srun one torchrun on each host), and the inner one has the rank: it is
# the earlier row.
LAUNCHERS: Mapping[str, str] = {
    "torchrun": "RANK",
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "MPICH and Intel MPI": "PMI_RANK",
    "SLURM": "SLURM_PROCID",
    "a TPU node pool of GKE": "TPU_WORKER_ID",
    "an indexed job of Kubernetes, JobSet": "JOB_COMPLETION_INDEX",
}
_OF_SLICES = ("TPU_WORKER_ID", "JOB_COMPLETION_INDEX")


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
    if (rank := _rank_of_ray_train()) is not None:
        return rank
    for name in LAUNCHERS.values():
        if environment.get(name, "").isdecimal():
            return int(environment[name]) + _workers_of_earlier_slices(environment, name)
    return 0


def _rank_of_ray_train() -> int | None:
    """The rank of a worker of Ray Train, which no environment variable has."""
    train = sys.modules.get("ray.train")
    try:
        return None if train is None else int(train.get_context().get_world_rank())
    except Exception:  # as in a process that is no worker
        return None


def _workers_of_earlier_slices(environment: Mapping[str, str], name: str) -> int:
    """What JAX adds to a worker's number in its TPU slice, in a job of several slices."""
    slice_id = environment.get("MEGASCALE_SLICE_ID", "")
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "")
    if name not in _OF_SLICES or not slice_id.isdecimal() or not hosts:
        return 0
    return int(slice_id) * len(hosts.split(","))


def _host() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return ""


def _now() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
