"""What does importing cost?

hbmwatch after jax, which a training program has loaded anyway, and parsing one message in a cold
interpreter, which loads no jax. Each case is a fresh process; the fastest of some counts, in
processor time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks._timing import table, versions

RUNS = 15
MESSAGE = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."
CASES = {  # what is loaded before, and what is timed
    "jax": ("", "import jax"),
    "hbmwatch, after jax": ("import jax", "import hbmwatch"),
    "watch_hbm, after jax": ("import jax", "from hbmwatch import watch_hbm"),
    "all of hbmwatch, after jax": ("import jax", "from hbmwatch import *"),
    "parse_oom, cold, with a message": ("", f"import hbmwatch; hbmwatch.parse_oom({MESSAGE!r})"),
}


def seconds(before: str, timed: str, bytecode: str) -> float:
    """What the timed code takes in a fresh interpreter, after the code before it."""
    start, end = "start = time.process_time()", "print(time.process_time() - start)"
    code = "\n".join(["import time", before, start, timed, end])
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    ran = subprocess.check_output([sys.executable, "-c", code], env=environment)
    return float(ran.split()[-1])


def main() -> None:
    """Print a row for each case."""
    best = dict.fromkeys(CASES, float("inf"))
    with tempfile.TemporaryDirectory() as bytecode:  # as an installed package has it
        for _ in range(RUNS):
            for name, (before, timed) in CASES.items():
                best[name] = min(best[name], seconds(before, timed, bytecode))
    rows = [[name, f"{1e3 * best[name]:.1f}", f"{best[name] / best['jax']:.3f}"] for name in CASES]
    print(f"{__doc__}\n{versions('jax', 'jaxlib', 'numpy')}, {os.cpu_count()} cores\n")
    print(table(("", "ms", "x import jax"), rows))


if __name__ == "__main__":
    main()
