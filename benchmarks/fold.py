"""How long does `hbmwatch fold` take for the reports of many processes, and how much memory?

The reports are copies of a real one (a training step that a v5e's compiler rejected), of as many
processes on as many hosts. One in a thousand has an older jax, or less free memory. The whole
command runs in a process of its own, with the page.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._timing import table, versions

COUNTS = (100, 1_000, 10_000)
REPORT = Path(__file__).parents[1] / "tests" / "golden" / "train.json"


def write_reports(logdir: Path, count: int) -> None:
    """Write the reports of a job into a log folder, each in a run of its own."""
    values = json.loads(REPORT.read_text(encoding="utf-8"))
    for index in range(count):
        run = logdir / "plugins" / "profile" / f"2026_11_30_08_15_02_hbmwatch_p{index}_7_1"
        run.mkdir(parents=True)
        changed = values | {"process_index": index, "process": _process(index, count)}
        if index % 1000 == 17:
            changed["versions"] = values["versions"] | {"jax": "0.9.0"}
        if index % 1000 == 18:
            needed = values["message"]["used_bytes"] + 2**30
            changed["message"] = values["message"] | {"used_bytes": needed}
        (run / "report.json").write_text(json.dumps(changed), encoding="utf-8")


def _process(index: int, count: int) -> dict[str, object]:
    """A process of a TPU host with four chips."""
    return {
        "index": index,
        "count": count,
        "host": f"gke-tpu-{index}",
        "pid": 7,
        "time": f"2026-11-30T08:15:{index % 60:02}.{index % 1000:03}Z",
        "device_ids": [4 * index + chip for chip in range(4)],
        "local_device_ids": [0, 1, 2, 3],
        "coords": [[index, 0, 0], [index, 1, 0], [index, 0, 1], [index, 1, 1]],
        "slice_index": index // 64,
    }


def fold_in_a_child(logdir: Path) -> tuple[float, float]:
    """Processor seconds and peak memory in MiB of the command."""
    command = [sys.executable, "-m", "hbmwatch", "fold", str(logdir)]
    command += ["--html", str(logdir / "job.html")]
    pid = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)]
    )
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"hbmwatch fold ended with status {status}")
    return usage.ru_utime + usage.ru_stime, _mib(usage)


def _mib(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main(arguments: Sequence[str]) -> None:
    """Print the table, for the counts given or for the usual ones."""
    rows = []
    for count in map(int, arguments or COUNTS):
        with tempfile.TemporaryDirectory() as folder:
            write_reports(Path(folder), count)
            runs = [fold_in_a_child(Path(folder)) for _ in range(3)]
        seconds, mib = (min(figures) for figures in zip(*runs, strict=True))
        rows.append([f"{count:,}", f"{seconds:.2f}", f"{1e3 * seconds / count:.2f}", f"{mib:.0f}"])
    size = REPORT.stat().st_size / 2**10
    print(f"{__doc__}\n{versions()}, {os.cpu_count()} cores, {size:.0f} KiB a report\n")
    print(table(("reports", "processor s", "ms a report", "MiB"), rows))


if __name__ == "__main__":
    main(sys.argv[1:])
