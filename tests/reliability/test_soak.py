"""A long run: ten thousand calls, and every hundredth runs out of memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.live import run

pytestmark = pytest.mark.slow

SOAK = """
import gc, resource, tempfile, time
tempfile.tempdir = sys.argv[1]
wide = jnp.ones(2**24)
step = watch_hbm(lambda x: jnp.broadcast_to(x[0], (x.shape[0], 2**24 if x.shape[0] > 8 else 1)) + 1)
step(x)

def used():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() >> 20

failed, start = 0, time.process_time()
for n in range(10_000):
    try:
        jax.block_until_ready(step(wide if n % 100 == 99 else x))
    except HbmOomError as oom:
        assert oom.report.missing == () and oom.summary.peak_bytes > 2**50
        failed += 1
    if n == 2_000:
        early = used()
print(failed, used() - early, time.process_time() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_ten_thousand_calls_with_a_hundred_failures(tmp_path: Path) -> None:
    """Every failure is explained, memory is flat, in less than two minutes of processor time."""
    failed, grown_mib, seconds = (float(word) for word in run(SOAK, tmp_path).split())

    assert failed == 100
    assert grown_mib <= 8
    assert seconds < 120
