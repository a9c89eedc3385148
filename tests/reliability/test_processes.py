"""A process of a distributed job that runs out of memory reports alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hbmwatch import load_peak_summary
from tests.live import IMPORTS, PETABYTE, outputs, start
from tests.reliability.launcher import free_port

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
