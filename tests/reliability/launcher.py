"""A job of real processes of jax.distributed, and the launcher that starts and ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Two collectives. Some ranks run out of memory before or after the first one, or do not reach the
# second one; the "last" one runs out when all others have reported.
TRAIN = """
import os, pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np
from hbmwatch import watch_hbm
address, index, count, logdir, when, others = sys.argv[1:]
jax.distributed.initialize(
    address, num_processes=int(count), process_id=int(index), heartbeat_timeout_seconds=20
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
everywhere = NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d"))
x = jax.make_array_from_process_local_data(everywhere, np.ones(1, np.float32))
total = jax.jit(jnp.sum)
@watch_hbm(logdir, on_oom="exit")
def fill(x):
    return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
print("ready", flush=True)
if when == "before":
    fill(jnp.ones(8))
print("step", float(total(x)), flush=True)
while when == "last" and len(list(pathlib.Path(logdir).rglob("report.txt"))) < int(others):
    time.sleep(0.01)
if when in ("after", "last"):
    fill(jnp.ones(8))
if when == "idle":
    time.sleep(3600)
print("step", float(total(x)))
"""


@dataclass
class Job:
    """A job that runs.

    Attributes:
        folder: Where its logs ("rank0.log") and its log folder ("xprof") are.
        processes: Its processes, by rank.
        ended: When each process was seen to have ended, in seconds since 1970.
    """

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)

    @property
    def logdir(self) -> Path:
        """Where its reports are."""
        return self.folder / "xprof"

    @property
    def logs(self) -> list[Path]:
        """The logs, by rank."""
        return [self.folder / f"rank{rank}.log" for rank in range(len(self.processes))]

    def start(self, count: int, when: Mapping[int, str]) -> None:
        """Start the processes; `when` says what each rank does besides its two steps."""
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        address = f"localhost:{free_port()}"
        environment = {**os.environ, "XLA_FLAGS": ""}  # one device: several wait for each other
        for rank in range(count):
            arguments = [address, rank, count, self.logdir, when.get(rank, ""), count - 1]
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "train.py", *map(str, arguments)],
                        stdout=log,
                        stderr=log,
                        cwd=self.folder,
                        env=environment,
                        process_group=0,
                    )
                )
        for rank in range(count):
            threading.Thread(target=self._watch, args=(rank,), daemon=True).start()

    def _watch(self, rank: int) -> None:
        self.processes[rank].wait()
        self.ended[rank] = time.time()

    def wait_for(self, words: str, ranks: Collection[int]) -> None:
        """Wait until the logs of some ranks have these words, or the ranks have ended."""
        for rank in ranks:
            while words not in self.logs[rank].read_text() and rank not in self.ended:
                time.sleep(0.05)

    def wait(self, ranks: Collection[int]) -> None:
        """Wait until ranks have ended."""
        for rank in ranks:
            while rank not in self.ended:
                time.sleep(0.05)

    def end(self) -> None:
        """Kill what still runs, with all that it has started, and wait for it."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def left(self) -> list[int]:
        """The ranks that still have a process: their own or one that they have started."""
        return [rank for rank, process in enumerate(self.processes) if _exists(process.pid)]


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port: int = server.getsockname()[1]
        return port
