"""A job that knows itself from its launcher's environment alone."""

from __future__ import annotations

import socket

import pytest

from tests.live import IMPORTS, outputs, start
from tests.reliability.launcher import free_port

TRAIN = """
jax.distributed.initialize()
try:
    watch_hbm(fill, capture="never")(jnp.ones(8))
except HbmOomError as oom:
    print(oom.report.process.label, "of", oom.report.process.count)
"""


def slurm(rank: int, port: int) -> dict[str, str]:
    """What srun gives a task of two on one host."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "JAX_COORDINATOR_PORT": str(port),  # else one that the job's number gives
    }


@pytest.mark.slow
def test_tasks_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX finds the job by the variables of srun, and each report names its task."""
    monkeypatch.setenv("XLA_FLAGS", "")
    port = free_port()
    children = []
    for rank in range(2):
        for name, value in slurm(rank, port).items():
            monkeypatch.setenv(name, value)
        children.append(start(TRAIN, prelude=IMPORTS))

    printed = outputs(children)

    host = socket.gethostname()
    assert printed == [f"process {rank} ({host}) of 2\n" for rank in range(2)]
