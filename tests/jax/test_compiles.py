"""When JAX compiles: each thread knows its own compiles."""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp

import hbmwatch._watch.guard  # noqa: F401  # it follows the compiles
from hbmwatch._jax.compiles import compile_seconds, since_lowering

X = jnp.ones(4)


def compile_something() -> tuple[float, float]:
    """Compile a program that is new each time; what this thread then knows of it."""
    jax.jit(lambda x: x + 1)(X)
    return compile_seconds(), since_lowering()


def test_a_thread_that_has_not_compiled_knows_no_times() -> None:
    """What other threads have compiled does not count as its own."""
    found: list[float] = []
    compile_something()

    thread = threading.Thread(target=lambda: found.extend((compile_seconds(), since_lowering())))
    thread.start()
    thread.join()

    assert found == [0.0, 0.0]


def test_a_compile_in_another_thread_changes_no_times_here() -> None:
    """The seconds of the last compile stay those of this thread."""
    seconds, _ = compile_something()
    started = time.perf_counter()
    found: list[tuple[float, float]] = []

    thread = threading.Thread(target=lambda: found.append(compile_something()))
    thread.start()
    thread.join()

    elapsed = time.perf_counter() - started
    assert found[0][0] > 0
    assert compile_seconds() == seconds
    assert since_lowering() > elapsed
