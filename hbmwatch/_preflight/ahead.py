"""A checkpoint that is compiled beside the unchanged step, which for a large step takes long."""

from __future__ import annotations

import contextlib
import logging
import time

from hbmwatch._jax.request import CompileRequest, compile_request
from hbmwatch._preflight.assigned import begin, has_passed
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.change import Asked, Change, Edit
from hbmwatch._preflight.changes.checkpoint import CHECKPOINT
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.child import Child
from hbmwatch._preflight.targets import Target

_log = logging.getLogger("hbmwatch")

# A compile that ends sooner, or in less than so many traces of the step, is not worth another one.
_LEAST_WAIT_S = 2.0
_TRACES = 2
# To look for places, to make one, and to make its estimate takes less than so many traces.
_MOST_TRACES = 6
# The unchanged step is given up after so many times what the step with the checkpoint took.
_PATIENCE = 2


class Ahead:
    """The first checkpoint of a step, in a compiler of its own. It ends when this is closed."""

    def __init__(
        self, call: Call, target: Target, limit_bytes: int | None, trace_s: float, until: float
    ) -> None:
        """Start nothing yet.

        Args:
            call: The unchanged step.
            target: What it is compiled for.
            limit_bytes: What the device has.
            trace_s: How long it took to trace the step.
            until: When the time is over, by time.monotonic().
        """
        self._call = call
        self._target = target
        self._limit_bytes = limit_bytes
        self._trace_s = trace_s
        self._until = until
        self._start_s = time.monotonic()
        self._begin = time.monotonic() + max(_LEAST_WAIT_S, _TRACES * trace_s)
        self._is_done = False
        self._edit: Edit | None = None
        self._changed: Call | None = None
        self._child: Child | None = None
        self._request: CompileRequest | None = None
        self._asked_s = 0.0
        self._passed_s: float | None = None

    def close(self) -> None:
        """End the compiler, and start none any more."""
        self._is_done = True
        child, self._child = self._child, None
        if child is not None:
            child.__exit__(None, None, None)

    @property
    def has_passed(self) -> bool:
        """Whether the step with the checkpoint was seen to fit."""
        return self._passed_s is not None

    def look(self) -> bool:
        """Start the compile once, if the unchanged step has been compiling for long enough.

        Returns:
            Whether to give up the compile of the unchanged step: that with the checkpoint fits, and
            it took far less.
        """
        now = time.monotonic()
        if not self._is_done and now >= self._begin:
            self._is_done = True
            if now + _MOST_TRACES * self._trace_s <= self._until and self._may_help():
                self._try_to_start()
        if self._child is None or self._request is None:
            return False
        if self._passed_s is None and has_passed(self._child, self._request, self._target):
            self._passed_s = now - self._asked_s
        return self._passed_s is not None and now - self._start_s > _PATIENCE * self._passed_s

    def take(self, call: Call, steps: tuple[tuple[Change, Edit], ...]) -> tuple[Call, Child] | None:
        """The changed call and its compiler, which the caller has to end; None for other changes.

        Args:
            call: What the changes are made to.
            steps: The changes.
        """
        child, changed = self._child, self._changed
        if child is None or changed is None or call is not self._call:
            return None
        if len(steps) != 1 or steps[0][1] != self._edit:
            return None
        self._child = None
        return changed, child

    def _may_help(self) -> bool:
        """Whether the step may need more than the device has. The estimate is often too high."""
        limit = self._limit_bytes
        return limit is not None and estimated_peak_bytes(self._call.jaxpr) > limit

    def _try_to_start(self) -> None:
        try:
            self._start()
        except Exception as error:  # it is tried again in its turn, and is reported then
            _log.debug("no checkpoint is compiled beside the step", exc_info=error)

    def _start(self) -> None:
        edits = CHECKPOINT.edits(self._call, None, Asked(until=self._until))
        with contextlib.closing(edits):
            edit = next(edits)
        changed = edit.on(self._call)
        if edit.is_worth_a_compile(self._call, changed):
            self._request = compile_request(changed.lower())
            self._child = begin(self._request, self._target)
            self._asked_s = time.monotonic()
            self._edit, self._changed = edit, changed
