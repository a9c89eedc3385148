"""Whether a copy of a host array to a device failed, and no program."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any, NamedTuple

from hbmwatch._explain.called import failing_frame
from hbmwatch._explain.holders import local_variables
from hbmwatch._jax.transfers import failed_copy
from hbmwatch._records.cells import shown_file
from hbmwatch._records.libraries import is_library
from hbmwatch._records.report import Transfer


class FailedTransfer(NamedTuple):
    """A copy that failed, and the devices to which it went."""

    transfer: Transfer
    devices: list[Any]


def failed_transfer(error: BaseException | None) -> FailedTransfer | None:
    """The copy that failed; None if something else failed.

    Args:
        error: The error; None where it is not known.
    """
    frames = None if error is None else error.__traceback__
    copy = failed_copy(frames, local_variables)
    if copy is None:
        return None
    failing = failing_frame(frames)
    if failing is None:  # the watched function is JAX's own
        source = _calling_line()
    else:
        source = _line(failing.tb_frame.f_code, failing.tb_lineno)
    return FailedTransfer(Transfer(copy.call, copy.shape, copy.size_bytes, source), copy.devices)


def _calling_line() -> str:
    """The innermost line of the user's code that is running; "" if there is none."""
    frame = inspect.currentframe()
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _line(frame.f_code, frame.f_lineno)


def _line(code: CodeType, number: int) -> str:
    """A line as people know it: "train.py:12"."""
    file = shown_file(code.co_filename).replace("\\", "/")
    return f"{file.rpartition('/')[2]}:{number}"
