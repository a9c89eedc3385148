"""Which process of a job this is."""

from __future__ import annotations

import datetime
import os
import socket

import jax
import pytest

from hbmwatch._jax.process import LAUNCHERS, this_process
from hbmwatch._records.process import Process


@pytest.fixture(autouse=True)
def _without_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS.values():
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone() -> None:
    """Index, host, devices and time are JAX's and the system's."""
    ids = tuple(device.id for device in jax.local_devices())
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(milliseconds=1)

    process = this_process()

    assert before <= datetime.datetime.fromisoformat(process.time)
    assert process == Process(
        0, 1, socket.gethostname(), os.getpid(), process.time, ids, process.local_device_ids
    )
    assert len(process.local_device_ids) == len(ids)


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "1"}, 1),
        ({"PMI_RANK": "5"}, 5),
        ({"RANK": "2"}, 2),
        ({"TPU_WORKER_ID": "7"}, 7),
        ({"JOB_COMPLETION_INDEX": "0"}, 0),
        ({"SLURM_PROCID": "", "RANK": "first"}, 0),
        ({"SLURM_PROCID": "1", "RANK": "11"}, 11),  # torchrun, which srun started
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "2"}, 2),  # mpirun in a batch script
        (  # the second of two slices of a JobSet
            {
                "JOB_COMPLETION_INDEX": "1",
                "TPU_WORKER_ID": "1",
                "TPU_WORKER_HOSTNAMES": "a-1-0.a,a-1-1.a",
                "MEGASCALE_SLICE_ID": "1",
                "MEGASCALE_NUM_SLICES": "2",
            },
            3,
        ),
    ],
)
def test_a_launcher_gives_the_rank(
    environment: dict[str, str], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name for a process that JAX knows alone; its tasks need not be one job."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    process = this_process()

    assert (process.index, process.count) == (index, 1)
