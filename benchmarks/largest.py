"""Is the largest size really the largest: are both ends proved by the compiler of the target?

Six steps, three targets. `largest` searches by buffer assignment and then compiles the answer and
the next size to the end. A row takes up to half an hour of processor time, so this benchmark runs
only where it is named; `python -m benchmarks.largest mlp decode v5e` runs some of the rows.
"""

from __future__ import annotations

import os
import sys

from benchmarks._timing import table, versions
from hbmwatch import Largest, largest
from hbmwatch._records.sizes import format_size
from tests.preflight import steps

os.environ.setdefault("JAX_PLATFORMS", "cpu")

TARGETS = ("v5e", "v6e", "h100")
# Each step, the multiple, and the first size to try.
STEPS: dict[str, tuple[steps.Made, int, int]] = {
    "mlp": (steps.mlp(), 8, 65536),
    "gpt": (steps.gpt(), 1, 32),
    "decode": (steps.decode(), 1, 16),
    "scanned": (steps.scanned(), 8, 65536),
    "distances": (steps.distances(), 8, 16384),
    "matmul": (steps.matmul(), 8, 16384),
}
HEAD = (
    "step, multiple of",
    "target",
    "size",
    "next size",
    "total of size",
    "its code",
    "limit",
    "proof",
    "tries",
    "processor s",
)


def main(names: list[str]) -> None:
    """Print a row for each step and target."""
    rows = []
    for name in [one for one in STEPS if one in names] or STEPS:
        (step, args_of), multiple, start = STEPS[name]
        for target in [one for one in TARGETS if one in names] or TARGETS:
            found = largest(
                step, args_of, on=target, multiple_of=multiple, start=start, timeout_s=7200
            )
            rows.append([f"{name}, {multiple}", target, *_figures(found)])
            print(" | ".join(rows[-1]), found.error, file=sys.stderr, flush=True)
    print(f"{__doc__}\n{versions('jax', 'jaxlib', 'libtpu')}, {os.cpu_count()} cores\n")
    print(table(HEAD, rows))


def _figures(found: Largest) -> list[str]:
    """What the search found, and how both ends were decided."""
    fit = found.fit
    over = found.tried.get(found.next_size or 0)
    code, limit = fit.code_bytes, fit.limit_bytes
    return [
        f"{found.size:,}" if found.size else "none",
        f"{found.next_size:,}" if found.next_size else "none",
        format_size(fit.total_bytes) if fit.total_bytes is not None else "",
        format_size(code) if code is not None else "",
        format_size(limit) if limit is not None else "",
        f"{fit.proof}, {over.proof if over is not None else 'none'}",
        str(len(found.tried)),
        f"{found.cpu_seconds:.0f}",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
