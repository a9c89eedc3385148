"""Logs what fails while a report is made."""

from __future__ import annotations

import logging

_log = logging.getLogger("hbmwatch")


def log_failure(what: str, error: BaseException) -> None:
    """Log a failure that costs a part of a report at most; a filter or a handler may fail too."""
    try:
        _log.debug("%s", what, exc_info=error)
    except Exception:  # the program's own code: the out-of-memory error matters more
        return
