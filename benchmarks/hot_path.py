"""What does watching a step cost as long as it succeeds?

The least that a Python decorator can add is a closure with a try/except. "x wrapper" is what a case
adds to its bare call as a multiple of what that closure adds. It is empty where the closure adds
less than 1% of the call, which is too little to measure. Times are those of the calling thread, so
that other programs disturb less; steps run in that thread (run_ahead measures the asynchronous
case). "x bare" compares whole calls in wall time; jax.profiler.trace is the recipe of OpenXLA's
page.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._timing import fastest, table, versions
from hbmwatch import watch_hbm

Step = Callable[..., Any]

ELEMENTS = {"3 us": 8, "10 us": 350, "50 us": 2200, "1 ms": 50000}
LEAVES = (1, 100, 1000)
WAITED, ALWAYS, TRACED = "jit, waited for", 'watch_hbm, sync="always"', "jax.profiler.trace"
BARE = {  # the case that each one is compared with
    "jit, bare wrapper": "jit",
    "jit, watch_hbm": "jit",
    "jit in `with watch_hbm()`": "jit",
    "compiled, bare wrapper": "compiled",
    "compiled, watched": "compiled",
    "nothing, bare wrapper": "nothing",
    "nothing, watch_hbm": "nothing",
    ALWAYS: WAITED,
    TRACED: "jit",
}


def bare_wrapper(fun: Step) -> Step:
    """The least that a decorator in Python can do."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception:
            raise

    return wrapped


def nothing(*args: Any, **kwargs: Any) -> None:
    """A step that does nothing, so that the cost around it shows most clearly."""


def work(state: list[jax.Array]) -> jax.Array:
    """A step that takes as long as its first argument is large."""
    x = state[0]
    for _ in range(4):
        x = jnp.sin(x) + 0.5
    return x


def measure(elements: int, leaves: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds per call of each way to run the step: of the thread, and for some in wall time."""
    state = [jnp.ones(elements), *(jnp.float32(n) for n in range(leaves - 1))]
    jitted = jax.jit(work, keep_unused=True)
    compiled = jitted.lower(state).compile()
    steps: dict[str, Step] = {
        "nothing": nothing,
        "nothing, bare wrapper": bare_wrapper(nothing),
        "nothing, watch_hbm": watch_hbm(nothing, jit=False),
        "jit": jitted,
        "jit, bare wrapper": bare_wrapper(jitted),
        "jit, watch_hbm": watch_hbm(jitted),
        "compiled": compiled,
        "compiled, bare wrapper": bare_wrapper(compiled),
        "compiled, watched": watch_hbm(jitted).lower(state).compile(),
        WAITED: lambda state: jax.block_until_ready(jitted(state)),
        ALWAYS: watch_hbm(jitted, sync="always"),
    }
    calls = {name: _call(step, state) for name, step in steps.items()}
    together = 400 if elements * leaves < 1000 else 20
    own = fastest(calls, clock=time.thread_time, calls=together)
    with watch_hbm():
        inside = {"jit in `with watch_hbm()`": calls["jit"]}
        own |= fastest(inside, clock=time.thread_time, calls=together)
    wall = fastest({name: calls[name] for name in ("jit", "jit, watch_hbm")}, calls=together)
    with tempfile.TemporaryDirectory() as folder:
        traced = _call(jax.profiler.trace(folder)(jitted), state)
        return own, wall | fastest({TRACED: traced}, calls=1)


def _call(step: Step, state: Any) -> Callable[[], object]:
    return lambda: step(state)


def added(times: dict[str, float], case: str) -> tuple[float, float | None]:
    """What a case adds to its bare call, in seconds, and as a multiple of the bare wrapper.

    The multiple is None where the bare wrapper adds less than a hundredth of the call.
    """
    bare = BARE[case]
    extra = times[case] - times[bare]
    floor = times.get(f"{bare}, bare wrapper", times[bare]) - times[bare]
    return extra, extra / floor if floor > times[bare] / 100 else None


def main() -> None:
    """Print a table for each length of step and number of arguments."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    print(f"{__doc__}\n{versions('jax', 'jaxlib')}, {os.cpu_count()} cores")
    for step, elements in ELEMENTS.items():
        for leaves in LEAVES:
            own, wall = measure(elements, leaves)
            title = f"step of {step}, {leaves} leaves"
            head = (title, "us a call", "added us", "x wrapper", "x bare")
            print("\n" + table(head, [_row(own, wall, case) for case in {**own, **wall}]))


def _row(own: dict[str, float], wall: dict[str, float], case: str) -> list[str]:
    row = [case, "", "", "", ""]
    if case in own:
        row[1] = f"{1e6 * own[case]:.2f}"
    if case in own and case in BARE:
        extra, ratio = added(own, case)
        row[2:4] = f"{1e6 * extra:+.2f}", "" if ratio is None else f"{ratio:.2f}"
    if case in wall:
        row[4] = f"{wall[case] / wall['jit']:.2f}"
    return row


if __name__ == "__main__":
    main()
