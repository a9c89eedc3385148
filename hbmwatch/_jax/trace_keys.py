"""A trace that JAX's caches keep apart from all others."""

from __future__ import annotations

import functools
import itertools
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import config

# The number of `jax_pgle_profiling_runs` is in the keys of JAX's caches, and nothing else reads it
# unless jax_enable_pgle is set. It is private. The public `jax.make_user_context` comes second:
# once a context is made, JAX traces and compiles every function again that it compiled before.
_numbers = itertools.count(1 << 20)


@functools.cache
def _user_context() -> Any:
    """The one user context; None where this JAX has none."""
    return jax.make_user_context(None) if hasattr(jax, "make_user_context") else None


def _context() -> Any:
    """A function that makes a context manager from a number.

    Raises:
        RuntimeError: jax_enable_pgle is set, and this JAX has no `jax.make_user_context`.
    """
    private = getattr(config, "pgle_profiling_runs", None)
    if private is not None and not config.enable_pgle.value:
        return private
    if _user_context() is None:
        raise RuntimeError("with jax_enable_pgle set, this needs a JAX that has user contexts")
    return _user_context()


class TraceKey:
    """A key of JAX's caches: what is traced under it is found under it alone.

    Raises:
        RuntimeError: jax_enable_pgle is set, and this JAX has no `jax.make_user_context`.
    """

    def __init__(self) -> None:
        self._context = _context()
        self._number = next(_numbers)

    def active(self) -> AbstractContextManager[Any]:
        """In the body, this thread traces under the key."""
        entered: AbstractContextManager[Any] = self._context(self._number)
        return entered
