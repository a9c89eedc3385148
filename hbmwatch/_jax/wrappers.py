"""Which functions only call another one, and which are made of it by a transformation."""

from __future__ import annotations

from typing import Any

# What calls a function as it is, among the functions and classes of JAX, Equinox and Flax.
_WRAPPERS = {
    "ExtendNameStackContextManager",  # jax.named_call, jax.named_scope
    "annotate_function",  # jax.profiler
    "_AssertMaxTraces",  # equinox.debug
    "_cached_partial",  # flax.nnx
    "cached_partial",  # flax.nnx before 0.12
}


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
