"""Puts a number in place of a symbolic dimension."""

from __future__ import annotations

from typing import Any

import jax
import jax.export


def concrete(args: Any, size: int) -> Any:
    """The arguments with a number in place of their one symbolic dimension.

    Args:
        args: A pytree of jax.ShapeDtypeStructs, some with dimensions of jax.export.symbolic_shape.
        size: The number.

    Raises:
        TypeError: There is no symbolic dimension, or more than one.
    """
    names = {name for leaf in jax.tree.leaves(args) for name in _names(leaf)}
    if len(names) != 1:
        named = ", ".join(sorted(names)) or "none"
        raise TypeError(
            "args_of must be a function of the size, or arguments with one symbolic dimension "
            f"(jax.export.symbolic_shape); its symbolic dimensions: {named}"
        )
    (name,) = names
    return jax.tree.map(lambda leaf: _evaluated(leaf, name, size), args)


def _names(leaf: Any) -> set[str]:
    """The symbols in a leaf's shape."""
    found: set[str] = set()
    for dimension in getattr(leaf, "shape", ()):
        if jax.export.is_symbolic_dim(dimension):
            found |= set(dimension._get_vars())
    return found


def _evaluated(leaf: Any, name: str, size: int) -> Any:
    """The leaf without symbolic dimensions."""
    if not _names(leaf):
        return leaf
    env: Any = {name: size}
    shape = tuple(
        int(one._evaluate(env)) if jax.export.is_symbolic_dim(one) else one for one in leaf.shape
    )
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
