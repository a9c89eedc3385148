"""Which process of a job this is."""

from __future__ import annotations

import datetime
import os
import socket

import jax
import pytest

from hbmwatch._jax.process import LAUNCHERS, this_process
from hbmwatch._records.process import Process

NO_LAUNCHER = [name for names in LAUNCHERS.values() for name in names if name]


@pytest.fixture(autouse=True)
def _without_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_LAUNCHER:
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
    ("environment", "expected"),
    [
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"TPU_WORKER_ID": "7"}, (7, 8)),
        ({"JOB_COMPLETION_INDEX": "0"}, (0, 1)),
        ({"SLURM_PROCID": "", "RANK": "first"}, (0, 1)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "many"}, (3, 4)),
    ],
)
def test_a_launcher_gives_the_rank(
    environment: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where JAX knows of one process only, the launcher's numbers count."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    process = this_process()

    assert (process.index, process.count) == expected
