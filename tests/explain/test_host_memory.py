"""How much memory the host has left: of files as the kernel writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._explain.host_memory import available_bytes
from tests.live import PETABYTE, SMALL, fill, oom_of

MIB = 1 << 20
GIB = 1 << 30
MEMINFO = "MemTotal:       24683656 kB\nMemFree:        16770248 kB\nMemAvailable:   20971520 kB\n"
NO_LIMIT_V1 = "9223372036854771712\n"
V1 = "5:cpu,cpuacct:/job\n4:memory:/job/step\n0::/\n"

# The files of a host, and what they leave.
HOSTS: dict[str, tuple[dict[str, str], int | None]] = {
    "no files, as on macOS": ({}, None),
    "no cgroups": ({"proc/meminfo": MEMINFO}, 20 * GIB),
    "version 2, limited": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "cgroup/job/memory.max": f"{8 * GIB}\n",
            "cgroup/job/memory.current": f"{5 * GIB}\n",
        },
        3 * GIB,
    ),
    "version 2, the cgroup around it limited": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/job\n",
            "cgroup/pod/job/memory.max": "max\n",
            "cgroup/pod/job/memory.current": f"{5 * GIB}\n",
            "cgroup/pod/memory.max": f"{6 * GIB}\n",
            "cgroup/pod/memory.current": f"{5 * GIB}\n",
        },
        1 * GIB,
    ),
    "version 2, its limit full of page cache": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "cgroup/memory.max": f"{8 * GIB}\n",
            "cgroup/memory.current": f"{8 * GIB}\n",
            "cgroup/memory.stat": f"anon {5 * GIB}\nfile {3 * GIB}\n"
            f"inactive_file {2 * GIB}\nactive_file {1 * GIB}\nslab 4096\n",
        },
        3 * GIB,
    ),
    "version 1, limited": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": V1,
            "cgroup/memory/job/step/memory.limit_in_bytes": f"{8 * GIB}\n",
            "cgroup/memory/job/step/memory.usage_in_bytes": f"{7 * GIB}\n",
            "cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
        },
        1 * GIB,
    ),
    "version 1, full of the page cache of its children": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": V1,
            "cgroup/memory/job/step/memory.limit_in_bytes": f"{8 * GIB}\n",
            "cgroup/memory/job/step/memory.usage_in_bytes": f"{8 * GIB - 4096}\n",
            "cgroup/memory/job/step/memory.stat": f"inactive_file 0\nactive_file {MIB}\n"
            f"total_inactive_file {GIB}\ntotal_active_file {GIB}\n",
        },
        2 * GIB + 4096,
    ),
    "in a container, whose path is the host's": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/docker/0123abcd\n0::/\n",
            "cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "cgroup/memory/memory.usage_in_bytes": f"{4 * GIB - 300 * MIB}\n",
        },
        300 * MIB,
    ),
    "without limits": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": V1,
            "cgroup/memory/job/step/memory.limit_in_bytes": NO_LIMIT_V1,
            "cgroup/memory/job/step/memory.usage_in_bytes": f"{9 * GIB}\n",
        },
        20 * GIB,
    ),
    "files that say nothing": (
        {
            "proc/meminfo": "\x00\xff",
            "proc/self/cgroup": "\n:\nmemory\n0::/\n",
            "cgroup/memory.max": "much\n",
        },
        None,
    ),
}


@pytest.mark.parametrize("host", HOSTS)
def test_what_is_left_is_the_least_of_all_limits(host: str, tmp_path: Path) -> None:
    """The kernel's own figure, and what each cgroup's limit leaves, with its page cache."""
    files, expected = HOSTS[host]
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert available_bytes(f"{tmp_path}/proc", f"{tmp_path}/cgroup") == expected


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_host_has_memory_left() -> None:
    """The real files are read: some memory is left, and less than the machine has."""
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024

    left = available_bytes()

    assert left is not None and 0 < left < total


@pytest.mark.parametrize("left_bytes", [0, 255 * MIB])
def test_a_report_needs_memory(
    left_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less than 256 MiB left the OOM gets out with its message alone, and says why."""
    monkeypatch.setattr("hbmwatch._explain.host_memory.available_bytes", lambda: left_bytes)

    oom = oom_of(watch_hbm(fill, logdir=tmp_path), SMALL)
    with pytest.raises(HbmOomError) as caught, watch_hbm(tmp_path) as watch:
        jax.block_until_ready(jax.jit(fill)(SMALL))

    assert watch.report is caught.value.report
    assert watch.report.missing == oom.report.missing
    assert oom.message.requested_bytes == PETABYTE
    assert oom.report.missing == (
        "could not build the report: MemoryError: not enough host memory to build the report",
    )
