"""Does the host run as far ahead of the device under watch_hbm as with bare jit?

Twenty steps are dispatched without waiting. How many results are still being computed when the host
is free?
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._timing import table, versions
from hbmwatch import watch_hbm

STEPS = 20


def work(x: jax.Array) -> jax.Array:
    """A step of some milliseconds."""
    for _ in range(4):
        x = jnp.sin(x) + 0.5
    return x


def run_ahead(step: Callable[..., Any], x: jax.Array) -> tuple[float, float, int]:
    """Seconds until the host is free and until all is computed; the results outstanding then."""
    jax.block_until_ready(step(x))
    start = time.perf_counter()
    results = [step(x) for _ in range(STEPS)]
    free = time.perf_counter()
    outstanding = sum(not result.is_ready() for result in results)
    jax.block_until_ready(results)
    return free - start, time.perf_counter() - start, outstanding


def main() -> None:
    """Print a line for each way to run the steps."""
    jax.config.update("jax_platforms", "cpu")
    x = jnp.ones(2**19)
    jitted = jax.jit(work)
    steps: dict[str, Callable[..., Any]] = {
        "bare jit": jitted,
        "watch_hbm": watch_hbm(jitted),
        "watched compiled": watch_hbm(jitted).lower(x).compile(),
        'watch_hbm, sync="always"': watch_hbm(jitted, sync="always"),
    }
    rows = []
    for name, step in steps.items():
        free, done, outstanding = min(run_ahead(step, x) for _ in range(5))
        rows.append([name, f"{1e3 * free:.2f}", f"{1e3 * done:.1f}", str(outstanding)])
    print(f"{__doc__}\n{versions('jax', 'jaxlib')}, {os.cpu_count()} cores\n")
    print(table((f"{STEPS} steps", "host free, ms", "all done, ms", "outstanding then"), rows))


if __name__ == "__main__":
    main()
