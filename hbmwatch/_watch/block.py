"""The `with` form, which is also the decorator with arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._explain.raising import hide_own_frames, raise_explained
from hbmwatch._records.failures import log_failure
from hbmwatch._watch.late import live_arrays, new_failed_arrays, wait_for_new_arrays
from hbmwatch._watch.step import watch_function
from hbmwatch._watch.switch import is_disabled
from hbmwatch._watch.types import P, R, Watched

if TYPE_CHECKING:
    from hbmwatch._report.report import OomReport


class WatchContext:
    """What watch_hbm returns without a function: a decorator and a context manager.

    Attributes:
        report: The last report of a `with` block; None as long as nothing has run out of memory in
            one.
    """

    def __init__(self, settings: Settings, jit: bool, jit_kwargs: Mapping[str, Any]) -> None:
        self.report: OomReport | None = None
        self._disabled = False
        self._before: list[dict[int, Any]] = []  # of the blocks that are open, the innermost last
        self._settings = settings
        self._jit = jit
        self._jit_kwargs = jit_kwargs

    def __call__(self, fun: Callable[P, R], /) -> Watched[P, R]:
        """Watch a function."""
        watched: Watched[P, R] = watch_function(fun, self._settings, self._jit, self._jit_kwargs)
        return watched

    def __enter__(self) -> WatchContext:
        """Watch a block of code.

        The end of the block waits for the arrays that were made in it, unless sync="never", so that
        an asynchronous failure is raised there. It does not raise an error that the block itself
        catches, in an `except` clause or with contextlib.suppress: the block may have handled it
        already.

        Raises:
            TypeError: The watch has arguments that only a decorated function can use.
        """
        if unusable := self._unusable():
            raise TypeError(
                f"a `with` block cannot use {', '.join(unusable)}: "
                "these apply to a function that watch_hbm decorates"
            )
        self._disabled = is_disabled()
        waits = not self._disabled and self._settings.sync != "never"
        self._before.append(live_arrays() if waits else {})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Explain an error of the block that is a device-memory OOM."""
        before = self._before.pop()
        if self._disabled:
            return
        try:
            if kind is None and self._settings.sync != "never":
                self._wait(before)
            elif isinstance(error, Exception):
                self._explain(error, before)
        except Exception as explained:
            with contextlib.suppress(Exception):
                hide_own_frames(explained)
            raise

    def _wait(self, before: dict[int, Any]) -> None:
        """Wait for the arrays that were made in the block, unless it handles their failure."""
        __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
        try:
            wait_for_new_arrays(before)
        except Exception as late:
            if _handles_itself(late):
                log_failure("an array of the block has failed, and the block handles it", late)
                return
            self._explain(late, before)
            raise

    def _explain(self, error: Exception, before: dict[int, Any]) -> None:
        """Raise HbmOomError in place of an OOM, and remember its report.

        Args:
            error: Any error.
            before: The arrays that existed when the block began; the failed program made others.
        """
        __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
        settings = replace(self._settings, on_oom=self._remember)
        report = raise_explained(error, functools.partial(_failed_call, before), settings)
        self.report = self.report if report is None else report

    def _unusable(self) -> list[str]:
        """The arguments that have no effect on a block, as it has no call to jit or to trace."""
        names = sorted(self._jit_kwargs)
        if self._settings.capture == "always":
            names.append("capture='always'")
        return names if self._jit else [*names, "jit=False"]

    def _remember(self, report: OomReport) -> None:
        """Keep the report before HbmOomError is raised, and pass it on."""
        self.report = report
        if self._settings.on_oom is not None:
            self._settings.on_oom(report)


def _handles_itself(late: Exception) -> bool:
    """Whether the block catches such an error itself, and may have handled this one already."""
    try:
        from hbmwatch._watch.handled import body_handles  # only a failure needs it

        return body_handles(late)
    except Exception as failed:
        log_failure("could not read the code of the block", failed)
        return False


def _failed_call(before: dict[int, Any]) -> FailedCall:
    """What is known of a block that failed: the arrays that a failed program should have made."""
    return FailedCall(outputs=new_failed_arrays(before))
