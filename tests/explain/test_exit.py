"""A process that exits at once after its report."""

from __future__ import annotations

import datetime

import pytest

from hbmwatch import Process
from hbmwatch._explain.exit import _grace_seconds
from hbmwatch._explain.failure import OOM_EXIT_STATUS
from tests.live import start

LOADER = """
import multiprocessing, time
spawn = multiprocessing.get_context("spawn")
loader = spawn.Process(target=time.sleep, args=(600,), daemon=True)
loader.start()
watch_hbm(fill, on_oom="exit", capture="never")(x)
"""


@pytest.mark.slow
def test_daemon_children_end_with_it() -> None:
    """A process that loads data for it would hold the launcher's pipes open."""
    child = start(LOADER)
    try:
        _, err = child.communicate(timeout=250)  # until every holder of the pipes has ended
    finally:
        child.kill()

    assert child.returncode == OOM_EXIT_STATUS
    assert "hbmwatch: fill ran out of memory at run time on CPU: requested 1.00 PiB" in err


def test_process_0_waits_as_long_as_its_own_report_took() -> None:
    """Within limits, whatever its clock says."""

    def seconds(ago: float) -> float:
        time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago)
        return _grace_seconds(Process(0, 2, time=time.isoformat().replace("+00:00", "Z")))

    assert _grace_seconds(Process(0, 2)) == seconds(0) == seconds(-3600) == 3
    assert 10 <= seconds(10) <= 30
    assert seconds(3600) == 30
