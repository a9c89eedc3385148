"""A process of a distributed job that runs out of memory reports alone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from hbmwatch import load_peak_summary
from hbmwatch._cli.main import main
from hbmwatch._explain.failure import OOM_EXIT_STATUS
from hbmwatch._messages.peer_loss import lost_peer
from tests.live import IMPORTS, PETABYTE, outputs, start

pytestmark = pytest.mark.slow

JOB = """
import json, os, time
address, index, logdir = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.distributed.initialize(address, num_processes=2, process_id=index)
from jax.experimental import multihost_utils
assert (jax.process_count(), jax.process_index()) == (2, index)
multihost_utils.sync_global_devices("both are there")
step = watch_hbm(fill, logdir=logdir)
if index == FAILING:
    start = time.process_time()
    try:
        step(jnp.ones(8))
    except HbmOomError as oom:
        seconds = time.process_time() - start
        report = oom.report
        print(json.dumps([report.process_index, report.missing, seconds, oom.summary.peak_bytes,
                          report.device.device_count]))
    open(os.path.join(logdir, "reported"), "w").close()
else:  # in no collective, and not even running JAX
    while not os.path.exists(os.path.join(logdir, "reported")):
        time.sleep(0.01)
multihost_utils.sync_global_devices("both go on")
print("done")
"""


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("failing", [0, 1])
def test_one_of_two_processes_reports_while_the_other_waits(failing: int, tmp_path: Path) -> None:
    """It needs no collective, says which process it is, in its files too, and the job goes on."""
    code = f"FAILING = {failing}\n{JOB}"
    address = f"localhost:{free_port()}"
    children = [start(code, address, index, tmp_path, prelude=IMPORTS) for index in range(2)]

    printed = [out.splitlines() for out in outputs(children)]

    assert printed[1 - failing][-1] == "done"
    *_, line, done = (line for line in printed[failing] if "[Gloo]" not in line)
    index, missing, seconds, peak, devices = json.loads(line)
    assert (index, missing, peak, devices) == (failing, [], PETABYTE + 32, 1)
    assert seconds < 20
    assert done == "done"
    (profile,) = (tmp_path / "plugins" / "profile").rglob("*.xplane.pb")
    assert f"_p{failing}_" in profile.parent.name
    assert socket.gethostname().split(".")[0] in profile.name
    assert load_peak_summary(tmp_path).peak_bytes == peak


EXITING = """
import os
import numpy as np
os.environ["XLA_FLAGS"] = ""  # one device: the threads of several wait a minute for each other
address, index, count, logdir = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.distributed.initialize(address, num_processes=count, process_id=index)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
everywhere = NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d"))
ones = np.ones(jax.local_device_count(), np.float32)
x = jax.make_array_from_process_local_data(everywhere, ones)
total = jax.jit(jnp.sum)
print(float(total(x)), flush=True)
if index in FAILING:
    watch_hbm(fill, logdir=logdir, on_oom="exit")(jnp.ones(8))
print(float(total(x)))
"""


def until(words: str, child: subprocess.Popen[str]) -> str:
    """What a child writes to stderr up to the line with these words."""
    lines: list[str] = []
    assert child.stderr is not None
    for line in child.stderr:
        lines.append(line)
        if words in line:
            break
    return "".join(lines)


def test_a_process_that_exits_at_once_lets_its_peers_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It exits with status 86 and its report, and does not wait; the other one loses it."""
    code = f"FAILING = (1,)\n{EXITING}"
    address = f"localhost:{free_port()}"
    children = [start(code, address, n, 2, tmp_path, prelude=IMPORTS) for n in range(2)]
    try:
        _, log = children[1].communicate(timeout=280)
        lost = until("by peer", children[0])  # its exit would take minutes
    finally:
        for child in children:
            child.kill()
            child.communicate()

    assert children[1].returncode == OOM_EXIT_STATUS
    assert 'Traceback (most recent call last):\n  File "<string>", line' in log
    assert "hbmwatch.HbmOomError: RESOURCE_EXHAUSTED" in log
    (tmp_path / "rank0.log").write_text(lost)
    assert main(["fold", str(tmp_path), str(tmp_path / "rank0.log")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "hbmwatch: 1 of 2 processes ran out of device memory"
    assert out[-2:] == [
        "  1 process did not run out of memory, but lost another process:",
        f"    rank0.log: {lost_peer(lost)}",
    ]


def test_the_coordinator_leaves_its_peers_time_to_report(tmp_path: Path) -> None:
    """Where both run out, the process with the coordination service exits last."""
    code = f"FAILING = (0, 1)\n{EXITING}"
    address = f"localhost:{free_port()}"
    children = [start(code, address, n, 2, tmp_path, prelude=IMPORTS) for n in range(2)]
    try:
        logs = [child.communicate(timeout=280)[1] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()

    assert children[0].returncode == OOM_EXIT_STATUS
    # On a busy machine process 1 may need more than these seconds; JAX then ends it.
    assert children[1].returncode in (OOM_EXIT_STATUS, -signal.SIGABRT)
    reported = [log for log in logs if "hbmwatch.HbmOomError" in log]
    assert len(reported) == sum(child.returncode == OOM_EXIT_STATUS for child in children)
