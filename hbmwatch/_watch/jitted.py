"""What a callable is to JAX: jitted or not, under which name, and what lowers its program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax

# What calls a function as it is, among the functions and classes of JAX, Equinox and Flax.
_WRAPPERS = {
    "ExtendNameStackContextManager",  # jax.named_call, jax.named_scope
    "annotate_function",  # jax.profiler
    "_AssertMaxTraces",  # equinox.debug
    "_cached_partial",  # flax.nnx
    "cached_partial",  # flax.nnx before 0.12
}


def holds_jitted(fun: Any) -> bool:
    """Whether the callable, or one that it wraps, is jitted; jitting it again loses its donation.

    A transformation of a jitted function, such as its gradient, is not jitted itself.
    """
    seen: set[int] = set()
    while fun is not None and id(fun) not in seen:
        seen.add(id(fun))
        if callable(getattr(fun, "lower", None)) or isinstance(fun, jax.stages.Compiled):
            return True
        if _is_transformation(fun):
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
    if _defining_module(target) == "contextlib":
        return lower_of(getattr(target, "__wrapped__", None))
    return None


def is_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a transformation traces the call, so that it becomes part of another program."""
    leaves = jax.tree_util.tree_leaves((args, kwargs))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _is_transformation(fun: Any) -> bool:
    """Whether JAX or a library made another function of it, rather than a wrapper that calls it."""
    if _defining_module(fun).partition(".")[0] not in ("jax", "equinox", "flax"):
        return False
    code = getattr(fun, "__code__", None)
    name = type(fun).__qualname__ if code is None else code.co_qualname
    return name.partition(".")[0] not in _WRAPPERS


def _defining_module(fun: Any) -> str:
    """The module that defines a function; functools.wraps may have copied another `__module__`."""
    name: str = getattr(fun, "__globals__", {}).get("__name__") or type(fun).__module__
    return name
