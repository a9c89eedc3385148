"""Failures of what a block of code dispatched and did not wait for."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from hbmwatch._explain.errors import may_be_oom
from hbmwatch._jax.failed_arrays import failure
from hbmwatch._jax.process import backends_are_initialized
from hbmwatch._records.failures import log_failure

_log = logging.getLogger("hbmwatch")


def live_arrays() -> dict[int, weakref.ref[Any]]:
    """The arrays that exist now, by id, without keeping them alive."""
    if not backends_are_initialized():
        return {}
    try:
        return {id(array): weakref.ref(array) for array in jax.live_arrays()}
    except Exception as error:  # the block must run in any case
        log_failure("could not list the live arrays", error)
        return {}


def wait_for_new_arrays(before: dict[int, weakref.ref[Any]]) -> None:
    """Wait for every array that exists now and did not exist before, the oldest first.

    Args:
        before: What live_arrays() returned.

    Raises:
        Exception: An array is the result of a program that ran out of memory. Anything else that
            waiting raises, the bare block would not raise.
    """
    for array in _new_arrays(before):
        try:
            if not array.is_deleted():
                array.block_until_ready()
        except Exception as error:
            if may_be_oom(error):
                raise
            _log.debug("could not wait for an array of the block", exc_info=error)


def new_failed_arrays(before: dict[int, weakref.ref[Any]]) -> list[Any]:
    """The arrays that did not exist before and whose programs have failed, the oldest first."""
    return [array for array in _new_arrays(before) if failure(array) is not None]


def _new_arrays(before: dict[int, weakref.ref[Any]]) -> Iterator[Any]:
    """The arrays that exist now and did not exist before, the oldest first."""
    for array in reversed(jax.live_arrays()) if backends_are_initialized() else ():
        known = before.get(id(array))
        if known is None or known() is not array:
            yield array
