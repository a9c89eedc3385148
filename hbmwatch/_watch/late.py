"""Failures of what a block of code dispatched and did not wait for."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import jax

from hbmwatch._explain.errors import may_be_oom
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
    """Wait for every array that exists now and did not exist before.

    Args:
        before: What live_arrays() returned.

    Raises:
        Exception: An array is the result of a program that ran out of memory. Anything else that
            waiting raises, the bare block would not raise.
    """
    if not backends_are_initialized():
        return
    for array in jax.live_arrays():
        known = before.get(id(array))
        if known is not None and known() is array:
            continue
        try:
            if not array.is_deleted():
                array.block_until_ready()
        except Exception as error:
            if may_be_oom(error):
                raise
            _log.debug("could not wait for an array of the block", exc_info=error)
