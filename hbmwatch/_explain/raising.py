"""Raises HbmOomError in place of an OOM that is being handled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

import jax

from hbmwatch._explain.donated import may_be_of_lost, note_on_lost
from hbmwatch._explain.errors import (
    HbmOomError,
    ReportNote,
    bare_report,
    belongs_to_jax,
    find_oom,
    notes_of,
    possibility,
    report_of,
)
from hbmwatch._explain.exit import exit_now
from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._explain.host_memory import check_host_memory
from hbmwatch._explain.problems import described, text_of
from hbmwatch._records.failures import log_failure

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage
    from hbmwatch._report.report import OomReport

_WATCH_PACKAGES = ("hbmwatch._watch.", "hbmwatch._explain.")
_WAITS = ("_wait_once", "wait_for_new_arrays")
_JAX_SAYS = "JAX has removed its internal frames"  # on every error, and between text and report


def raise_explained(
    error: Exception, failed_call: Callable[[], FailedCall], settings: Settings
) -> OomReport | None:
    """Raise HbmOomError in place of a device-memory OOM; called while `error` is handled.

    The caller re-raises any other error unchanged, also an OOM that has been explained already. An
    OOM inside somebody else's exception gets the report as a note and is re-raised as well.

    If anything else fails here, the caller can still re-raise `error`. KeyboardInterrupt and other
    exceptions that ask the program to stop get out at once.

    Returns:
        The report that is attached to `error`, or None.

    Raises:
        HbmOomError: With the frames and notes of `error`. Its context is `error`, which tracebacks
            do not show, because they would show the compiler's text twice; they show it where JAX's
            traceback filtering is off. If `error` itself is chained to another error, HbmOomError
            is chained to that one.
    """
    # For IPython and pytest, for Sentry, and for rich, as JAX marks its own frames.
    __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
    try:
        carrier, report = _explained(error, failed_call, settings)
        if settings.exits and report is not None:
            shown = error if carrier is None else carrier.with_traceback(_callers_frames(error))
            exit_now(shown, report.process)
        cause = error if _filters_nothing() else None
        if carrier is not None and cause is None:
            carrier = carrier.with_traceback(_callers_frames(error))
    except Exception as failed:  # no memory or no stack is left: `error` matters more
        try:  # at the end of the interpreter the names of a module are None, contextlib too
            _say_why(error, failed)
        except Exception:  # noqa: SIM105
            pass
        return None
    # No local may hold the exception when it is raised, as its traceback holds this frame.
    try:
        if isinstance(carrier, HbmOomError):
            raise carrier from cause
    finally:
        with contextlib.suppress(Exception):
            if carrier is not None and carrier.__cause__ is None:
                _chain(carrier, error)
        del carrier, cause, error
    return report


def hide_own_frames(explained: Exception) -> None:
    """Take our frames off the traceback of what raise_explained raised; called where it is caught.

    A bare `raise` afterwards adds no frame of the function that it is in, so the traceback shows
    what a bare call would show, in every tool. Where JAX's traceback filtering is off, all frames
    stay.
    """
    if not _filters_nothing():
        explained.__traceback__ = _callers_frames(explained)


def _say_why(error: Exception, failed: Exception) -> None:
    """Add a note on why an error that may be a device-memory OOM has no report."""
    with contextlib.suppress(Exception):
        if belongs_to_jax(error) and "emory" in text_of(error):
            error.add_note(f"hbmwatch: no report: {described(failed)}")


def _chain(carrier: BaseException, error: Exception) -> None:
    """Chain what was raised in place of `error` to what `error` is chained to."""
    if error.__cause__ is not None or error.__context__ is not None:
        carrier.__cause__, carrier.__context__ = error.__cause__, error.__context__
        carrier.__suppress_context__ = error.__suppress_context__
    else:
        # The carrier has its frames, which hold the call's arrays: code that drops the carrier's
        # traceback drops the arrays, as with the error that JAX raises.
        error.__traceback__ = None


def _filters_nothing() -> bool:
    """Whether JAX shows all of its own frames, which is a setting for debugging JAX."""
    return getattr(jax.config, "jax_traceback_filtering", "auto") == "off"


def _callers_frames(error: Exception) -> TracebackType | None:
    """The error's traceback from the first frame on that is not the watch's own.

    What the watch's own wait for the outputs calls is the watch's own, too.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(
        _WATCH_PACKAGES
    ):
        if frames.tb_frame.f_code.co_name in _WAITS:
            return None
        frames = frames.tb_next
    return frames


def _explained(
    error: Exception, failed_call: Callable[[], FailedCall], settings: Settings
) -> tuple[BaseException | None, OomReport | None]:
    """What to raise in place of `error`, or None to raise `error` itself; and the report."""
    known = report_of(error)
    found = find_oom(error) if known is None else None
    if found is None:
        note = _note_on(error, failed_call) if known is None else ""
        if note and note not in notes_of(error):
            error.add_note(note)
        return None, known
    link, message = found
    # The frames of the OOM itself say which program failed, not those of what it is a part of.
    report = _report(link if link.__traceback__ else error, message, failed_call, settings)
    carrier = _carrier(error, link, message, report, settings.top)
    _tell(report, carrier, settings)
    return (None if carrier is error else carrier), report


def _note_on(error: Exception, failed_call: Callable[[], FailedCall]) -> str:
    """What to add to an error that is no OOM, and may be one or follow from one; "" for others."""
    if may_be_of_lost(error):
        return note_on_lost(failed_call())
    return possibility(error)


def _carrier(
    error: Exception, link: BaseException, message: OomMessage, report: OomReport, top: int
) -> BaseException:
    """What carries the report: HbmOomError in place of JAX's own error, else `error` itself."""
    try:
        ours = link is error and belongs_to_jax(error)
        carrier = _in_place_of(message, report) if ours else error
        for note in notes_of(error) if ours else ():
            if isinstance(note, str) and _JAX_SAYS not in note:
                carrier.add_note(note)
        carrier.add_note(ReportNote(report, top))
        return carrier
    except Exception as failed:
        log_failure("could not attach the report", failed)
        return error


def _in_place_of(message: OomMessage, report: OomReport) -> HbmOomError:
    """The error that replaces JAX's own, and begins as that did."""
    carrier = HbmOomError(message.text, report)
    start = message.text.encode("utf-8", "replace").decode()[:100].rstrip()
    if not str(carrier).startswith(start):
        raise ValueError("the text of the error is lost")
    return carrier


def _report(
    error: BaseException,
    message: OomMessage,
    failed_call: Callable[[], FailedCall],
    settings: Settings,
) -> OomReport:
    try:
        check_host_memory()
        from hbmwatch._explain.build import build_report

        return build_report(message, replace(failed_call(), error=error), settings)
    except Exception as failed:
        log_failure("could not build the report", failed)
        return bare_report(message, failed)


def _tell(report: OomReport, carrier: BaseException, settings: Settings) -> None:
    """Call on_oom; the OOM gets out if that fails, unless it asks the program to stop."""
    if settings.on_oom is None:
        return
    try:
        settings.on_oom(report)
    except Exception as failed:
        log_failure("on_oom failed", failed)
        carrier.add_note(f"hbmwatch: on_oom raised {described(failed)}")
