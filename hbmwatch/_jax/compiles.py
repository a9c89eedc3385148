"""When JAX compiles, in which thread, and for how long: one listener of jax.monitoring."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax.monitoring

_BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"

_LOST = float("nan")  # differs from every number, itself included


class _Thread(threading.local):
    """The last compile of the calling thread: its number, its seconds, when it was lowered."""

    number = 0
    seconds = 0.0
    lowered_at: float | None = None


_thread = _Thread()
_numbers = itertools.count(1)  # next() is atomic


class _Follower:
    """Who counts the compiles, and whether JAX still has our listener."""

    tell: Callable[[float], None] | None = None
    listener: weakref.ref[Callable[..., None]] | None = None


def follow(tell: Callable[[float], None]) -> None:
    """Call `tell` with a new number whenever JAX has compiled, in whatever thread.

    It gets NaN when jax.monitoring.clear_event_listeners() has removed our listener. JAX's list
    holds the only reference to the listener, so its end shows this without a check on every call.
    """

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == _BACKEND_COMPILE:
            _thread.number, _thread.seconds = next(_numbers), duration_secs
            tell(_thread.number)
        elif event == _LOWERED:
            _thread.lowered_at = time.perf_counter()

    _Follower.tell = tell
    _Follower.listener = weakref.ref(on_duration, lambda _: tell(_LOST))
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    tell(next(_numbers))


def compiled_since(number: float) -> bool:
    """Whether this thread has compiled something since `tell` got this number.

    Where our listener was removed it is not known, which counts as True; then JAX gets a new one.
    """
    tell, listener = _Follower.tell, _Follower.listener
    if tell is not None and (listener is None or listener() is None):
        follow(tell)
        return True
    return number != number or _thread.number > number


def compile_seconds() -> float:
    """What the last compile of this thread took; 0.0 before there was one."""
    return _thread.seconds


def since_lowering() -> float:
    """What a compile that has just failed took: it began when its program had been lowered.

    0.0 where this thread has lowered nothing.
    """
    return 0.0 if _thread.lowered_at is None else time.perf_counter() - _thread.lowered_at
