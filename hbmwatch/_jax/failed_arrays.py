"""Arrays that a failed program should have made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

# What the CPU client puts before an error: one part for each program that was given the result.
_PASSED_ON = re.compile(
    r"^(?:[A-Z_]+: )?(?:Buffer Definition Event: )?"  # the latter in jax 0.6
    r"(?P<passed>(?:Error dispatching computation: )*)(?:Error preparing computation: )?"
)


class FailedArray(NamedTuple):
    """An array whose program failed.

    Attributes:
        dimensions: Its dimensions on one device.
        text: The error that waiting for it raises.
    """

    dimensions: tuple[int, ...]
    text: str

    @property
    def passed(self) -> int:
        """How many programs the error passed before it reached this array; 0 if not known."""
        return passed(self.text)


def passed(text: str) -> int:
    """How many programs got a failed result as input and passed the error on; 0 if unknown."""
    found = _PASSED_ON.match(text)
    return found["passed"].count("dispatching") if found else 0


def first_failed(text: str, arrays: Iterable[Any]) -> FailedArray | None:
    """The first of the arrays that failed with the cause that this text says; None if none did.

    Args:
        text: The text of an error.
        arrays: Arrays and other leaves, the oldest first.
    """
    cause = _PASSED_ON.sub("", text)
    failed = (found for array in arrays if (found := failure(array)) is not None)
    alike = (found for found in failed if _PASSED_ON.sub("", found.text) == cause)
    return min(alike, key=lambda found: found.passed, default=None)


def failure(array: Any) -> FailedArray | None:
    """An array that has failed already; None for any other value, and while it is computed."""
    is_array = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if not is_array or array.is_deleted() or not array.is_ready():
        return None
    try:
        array.block_until_ready()
    except Exception as error:
        return FailedArray(tuple(array.sharding.shard_shape(array.shape)), str(error))
    return None
