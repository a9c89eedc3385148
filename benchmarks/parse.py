"""How long does parse_oom take over a log, and does the time grow in proportion to it?

"x split" compares with the bare case of reading a log in Python, text.split(). "growth" is the time
per MB of the longest text, divided by that of a text a tenth as long; 1.0 is in proportion.
"""

from __future__ import annotations

import time

from benchmarks._timing import fastest, table, versions
from hbmwatch import parse_oom

MEGABYTES = (0.1, 1, 10)
FAILURE = (
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
    "memory in memory space hbm. Used 22.00G of 15.75G hbm. Exceeded hbm capacity by 6.25G.\n"
)
STEP = "2026-03-01 10:00:00.123456: I external/xla/xla/client.cc:12] step 7, memory in use 12 GiB\n"
CASES = {  # what is repeated, and what is at the end
    "a log without an OOM": (STEP, ""),
    "a log with an OOM at its end": (STEP, FAILURE),
    "a log with a prefix on each line": ("(EngineCore pid=106339) ERROR " + STEP, FAILURE),
    "near misses": ("Ran out of memory in\n", ""),
    "near misses of every row": ("Failed to allocate 5 x, Out of memory, hbm usage >= 1\n", ""),
    "unclosed brackets": ("[memory ", ""),
    "unclosed quotes": ("#allocation1 [shape = '", ""),
    "nothing but OOMs": (FAILURE, ""),
}


def text(repeated: str, end: str, megabytes: float) -> str:
    """A text of a length."""
    return repeated * (int(megabytes * 1e6) // len(repeated)) + end


def milliseconds_per_megabyte(repeated: str, end: str, megabytes: float) -> tuple[float, float]:
    """What parse_oom and split take."""
    whole = text(repeated, end, megabytes)
    cases = {"parse": lambda: parse_oom(whole), "split": lambda: whole.split()}
    took = fastest(cases, runs=3, calls=1, clock=time.thread_time)
    size = len(whole) / 1e9
    return took["parse"] / size, took["split"] / size


def main() -> None:
    """Print the milliseconds per MB of each case at each length."""
    rows = []
    for name, (repeated, end) in CASES.items():
        took = [milliseconds_per_megabyte(repeated, end, size) for size in MEGABYTES]
        parse = [each[0] for each in took]
        growth = parse[-1] / parse[-2]
        ratio = parse[-1] / took[-1][1]
        figures = [f"{each:.1f}" for each in parse]
        rows.append([name, *figures, f"{growth:.2f}", f"{ratio:.1f}"])
    print(f"parse_oom, CPU ms per MB ({versions('hbmwatch')})\n")
    print(table(["text", *(f"{size} MB" for size in MEGABYTES), "growth", "x split"], rows))


if __name__ == "__main__":
    main()
