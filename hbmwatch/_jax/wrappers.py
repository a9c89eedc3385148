"""Which functions only call another one, also with arguments of theirs, and which transform it."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

# What calls a function as it is, among the functions and classes of JAX, Equinox and Flax.
_WRAPPERS = {
    "ExtendNameStackContextManager",  # jax.named_call, jax.named_scope
    "annotate_function",  # jax.profiler
    "_AssertMaxTraces",  # equinox.debug
    "_cached_partial",  # flax.nnx
    "cached_partial",  # flax.nnx before 0.12
}

# flax.nnx.cached_partial keeps the function and its first arguments in these variables.
_CACHED_PARTIAL = {"_cached_partial", "cached_partial"}
_FUNCTION, _ARGUMENTS = "f", "cached_args"
# How many partials of partials are opened.
_MOST_LAYERS = 16


def with_bound_arguments(
    fun: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The function in a partial, with all of its arguments; of flax.nnx.cached_partial too."""
    for _ in range(_MOST_LAYERS):
        if isinstance(fun, functools.partial):
            fun, args, kwargs = fun.func, (*fun.args, *args), {**fun.keywords, **kwargs}
        elif (bound := cached_by_flax(fun)) is not None:
            fun, args = bound[0], (*bound[1], *args)
        else:
            break
    return fun, args, kwargs


def cached_by_flax(fun: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The function of flax.nnx.cached_partial and its first arguments; None for any other."""
    if not isinstance(fun, types.FunctionType) or defining_module(fun).partition(".")[0] != "flax":
        return None
    if fun.__code__.co_qualname.partition(".")[0] not in _CACHED_PARTIAL:
        return None
    closed = inspect.getclosurevars(fun).nonlocals
    given = closed.get(_ARGUMENTS)
    return (closed[_FUNCTION], given) if isinstance(given, tuple) and _FUNCTION in closed else None


def with_function(cached: types.FunctionType, function: Any) -> types.FunctionType:
    """What flax.nnx.cached_partial made, with the same cache, around another function."""
    cells = tuple(
        types.CellType(function) if name == _FUNCTION else cell
        for name, cell in zip(cached.__code__.co_freevars, cached.__closure__ or (), strict=True)
    )
    return types.FunctionType(cached.__code__, cached.__globals__, cached.__name__, None, cells)


def is_transformation(fun: Any) -> bool:
    """Whether JAX or a library made another function of it, rather than a wrapper that calls it."""
    if defining_module(fun).partition(".")[0] not in ("jax", "equinox", "flax"):
        return False
    code = getattr(fun, "__code__", None)
    name = type(fun).__qualname__ if code is None else code.co_qualname
    return name.partition(".")[0] not in _WRAPPERS


def defining_module(fun: Any) -> str:
    """The module that defines a function; functools.wraps may have copied another `__module__`."""
    name: str = getattr(fun, "__globals__", {}).get("__name__") or type(fun).__module__
    return name


def has_own_lower(fun: Any) -> bool:
    """Whether `fun.lower` lowers this function: functools.wraps copies that of another one."""
    lower = getattr(fun, "lower", None)
    copied = "lower" in getattr(fun, "__dict__", {}) and lower is getattr(
        getattr(fun, "__wrapped__", None), "lower", None
    )
    return callable(lower) and not copied
