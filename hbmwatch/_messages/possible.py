"""Errors that do not say that memory ran out, and often mean it."""

from __future__ import annotations

# What XLA's CPU backend says of each failure of the library that computes its matrix products.
_YNNPACK = "YNNPACK operation failed"
_YNNPACK_NOTE = (
    "XLA gives no reason for this failure of YNNPACK, the library that computes matrix "
    "products on the CPU. Memory possibly ran out: YNNPACK fails like this when its buffers do not "
    "fit in host memory."
)


def possible_oom(text: str) -> str:
    """A note on an error that may be an OOM although it does not say so; "" for any other."""
    return _YNNPACK_NOTE if _YNNPACK in text else ""
