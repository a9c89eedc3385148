"""What a callable is to JAX: jitted or not, under which name, and what lowers its program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax

from hbmwatch._jax.wrappers import (
    cached_by_flax,
    defining_module,
    is_transformation,
    with_function,
)


def holds_jitted(fun: Any) -> bool:
    """Whether the callable, or one that it wraps, is jitted; jitting it again loses its donation.

    A transformation of a jitted function, such as its gradient, is not jitted itself.
    """
    seen: set[int] = set()
    while fun is not None and id(fun) not in seen:
        seen.add(id(fun))
        if callable(getattr(fun, "lower", None)) or isinstance(fun, jax.stages.Compiled):
            return True
        if is_transformation(fun):
            return False
        fun = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None)
    return False


def function_name(fun: Any) -> str:
    """The function's name; of a partial the inner function's, of another callable its class's."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    is_compiled = isinstance(fun, jax.stages.Compiled)
    return getattr(fun, "__name__", "") or ("" if is_compiled else type(fun).__name__)


def lower_of(target: Any) -> Callable[..., Any] | None:
    """What lowers the program that a call of `target` runs; None where that is not known.

    For a partial and for jax.profiler.trace(folder)(jitted) it is the inner function's `lower`.
    What other wrappers do with their arguments is not known.
    """
    if callable(getattr(target, "lower", None)):
        return cast(Callable[..., Any], target.lower)
    if isinstance(target, functools.partial):
        inner = lower_of(target.func)
        return inner and functools.partial(inner, *target.args, **target.keywords)
    if (cached := cached_by_flax(target)) is not None:
        inner = lower_of(cached[0])
        return inner and with_function(target, inner)
    if defining_module(target) == "contextlib":
        return lower_of(getattr(target, "__wrapped__", None))
    return None


def is_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a transformation traces the call, so that it becomes part of another program."""
    leaves = jax.tree_util.tree_leaves((args, kwargs))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
