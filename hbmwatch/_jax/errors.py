"""JAX's errors that have no public name."""

from __future__ import annotations


def is_mosaic_error(error: BaseException) -> bool:
    """Whether it is Pallas's MosaicError; by name, because its module would load all of Pallas."""
    kind = type(error)
    return kind.__name__ == "MosaicError" and kind.__module__.startswith("jax.")
