"""A trace that JAX's caches keep apart from all others."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import config

# Later versions of JAX have a public way. The context is made once, because JAX traces each
# function again that it traced before a context was made. In jax 0.6.2 the context manager of
# `jax_pgle_profiling_runs` serves, which is private: the number is in the keys of JAX's caches,
# and nothing reads it unless jax_enable_pgle is set.
_context: Any = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None
_numbers = itertools.count(1 << 20)


class TraceKey:
    """A key of JAX's caches: what is traced under it is found under it alone.

    Raises:
        RuntimeError: jax_enable_pgle is set, and this JAX has no `jax.make_user_context`.
    """

    def __init__(self) -> None:
        if _context is None and config.enable_pgle.value:
            raise RuntimeError("with jax_enable_pgle set, this needs a JAX that has user contexts")
        self._number = next(_numbers)

    def active(self) -> AbstractContextManager[Any]:
        """In the body, this thread traces under the key."""
        context = config.pgle_profiling_runs if _context is None else _context
        entered: AbstractContextManager[Any] = context(self._number)
        return entered
