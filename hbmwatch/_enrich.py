"""From an error that is being handled to the HbmOomError that is raised in its place."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from hbmwatch import _errors
from hbmwatch._failure import Failure, Settings
from hbmwatch._missing import described

if TYPE_CHECKING:
    from hbmwatch._records import OomMessage, OomReport

_log = logging.getLogger("hbmwatch")

_ROOM_BYTES = 2**28  # several times what a large report takes; only asked for, never touched


def raise_explained(
    error: Exception, failure: Callable[[], Failure], settings: Settings
) -> OomReport | None:
    """Raise HbmOomError in place of a device-memory OOM; called while `error` is handled.

    Anything else, and an OOM that has been explained already, is left to the caller to re-raise as
    it is. So is one that is wrapped in somebody else's exception; that gets the report as a note.

    Whatever fails meanwhile, `error` gets out; what asks the program to stop gets out at once.

    Returns:
        The report that is attached to `error`, or None.

    Raises:
        HbmOomError: `from None`, so that a traceback shows the compiler's text once; chained where
            JAX's traceback filtering is off.
    """
    try:
        carrier, report = _explained(error, failure, settings)
    except Exception:  # no memory or no stack is left even to say so: `error` is worth more
        return None
    # No local may hold the exception when it is raised: its traceback holds this frame.
    try:
        if carrier is not None:
            raise carrier from (error if _filters_nothing() else None)
    finally:
        del carrier, error
    return report


def _explained(
    error: Exception, failure: Callable[[], Failure], settings: Settings
) -> tuple[BaseException | None, OomReport | None]:
    """What to raise in place of `error`, None where it is itself to be raised; and the report."""
    known = _errors.report_of(error)
    found = _errors.find_oom(error) if known is None else None
    if found is None:
        return None, known
    link, message = found
    report = _report(message, failure, settings)
    carrier = _carrier(error, link, message, report)
    _tell(report, carrier, settings)
    return (None if carrier is error else carrier), report


def _carrier(
    error: Exception, link: BaseException, message: OomMessage, report: OomReport
) -> BaseException:
    """What carries the report: HbmOomError in place of JAX's own error, else `error` itself."""
    try:
        ours = link is error and _errors.belongs_to_jax(error)
        carrier = _errors.HbmOomError(message.text, report) if ours else error
        carrier.add_note(_errors.ReportNote(report))
        return carrier
    except Exception as failed:
        _log.debug("the report could not be attached", exc_info=failed)
        return error


def _filters_nothing() -> bool:
    """Whether JAX shows all of its own frames, as who debugs JAX asks for."""
    return getattr(jax.config, "jax_traceback_filtering", "auto") == "off"


def _report(
    message: OomMessage, failure: Callable[[], Failure], settings: Settings
) -> OomReport:
    try:
        _check_host_memory()
        from hbmwatch import _report as explaining

        return explaining.explain(message, failure(), settings)
    except Exception as failed:
        _log.debug("the report could not be made", exc_info=failed)
        return _errors.bare_report(message, failed)


def _check_host_memory() -> None:
    """Raise MemoryError where the host's memory is nearly gone: XLA's code would abort there."""
    try:
        mmap.mmap(-1, _ROOM_BYTES).close()
    except OSError as error:
        room = _ROOM_BYTES // 2**20
        raise MemoryError(f"the host has less than {room} MiB of memory left for it") from error


def _tell(report: OomReport, carrier: BaseException, settings: Settings) -> None:
    """Call on_oom; the OOM gets out whatever that raises, unless it asks the program to stop."""
    if settings.on_oom is None:
        return
    try:
        settings.on_oom(report)
    except Exception as failed:
        _log.debug("on_oom failed", exc_info=failed)
        carrier.add_note(f"hbmwatch: on_oom raised {described(failed)}")
