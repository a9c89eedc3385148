"""What does importing cost?

hbmwatch beside jax alone, and reading one message from a cold interpreter, which loads no jax. Each
is a process of its own: the processor time of the fastest of some, less that of its bare case.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks._timing import fastest, table, versions

MESSAGE = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."
CASES = {  # the code, and the case that it is compared with
    "python": ("", ""),
    "parse_oom": (f"import hbmwatch; hbmwatch.parse_oom({MESSAGE!r})", "python"),
    "import jax": ("import jax", ""),
    "import jax, hbmwatch": ("import jax, hbmwatch", "import jax"),
    "import jax, watch_hbm": ("import jax; from hbmwatch import watch_hbm", "import jax"),
    "import jax, HbmOomError": ("import jax; from hbmwatch import HbmOomError", "import jax"),
}


def children() -> float:
    """Processor seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a row for each case."""
    runs: dict[str, Callable[[], object]] = {}
    for name, (code, _) in CASES.items():
        command = [sys.executable, "-c", code]
        runs[name] = partial(subprocess.run, command, check=True)
    best = fastest(runs, runs=25, calls=1, clock=children)
    rows = []
    for name, (_, bare) in CASES.items():
        extra = f"{1e3 * (best[name] - best[bare]):+.1f}" if bare else ""
        rows.append([name, f"{1e3 * best[name]:.1f}", extra])
    print(f"{__doc__}\n{versions('jax', 'jaxlib', 'numpy')}, {os.cpu_count()} cores\n")
    print(table(("", "ms", "added ms"), rows))


if __name__ == "__main__":
    main()
