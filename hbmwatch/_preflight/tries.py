"""Compiles calls with changes, one after another, until the time is over."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.ahead import Ahead
from hbmwatch._preflight.assigned import Compiled, Proof, compile_for
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Change, Edit
from hbmwatch._preflight.child import Child
from hbmwatch._preflight.fits import fit_of
from hbmwatch._preflight.targets import Target
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport

_log = logging.getLogger("hbmwatch")


class NotWorthACompile(NothingToChange):
    """By an estimate, the call needs no less memory with a change."""

    def __init__(self) -> None:
        super().__init__("by an estimate from shapes, the step needs no less memory with it")


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A call that was compiled.

    Attributes:
        call: The call, with the changes made.
        steps: The changes and their edits, in the order in which they were made.
        fit: The verdict on it.
        facts: The facts of its program; None if there was no buffer assignment.
        number: Its place in the order of the tries.
    """

    call: Call
    steps: tuple[tuple[Change, Edit], ...]
    fit: Fit
    facts: ProgramFacts | None
    number: int = 0

    @property
    def kind(self) -> str:
        """The kind of the changes together: the last of their letters."""
        return max((change.kind for change, _ in self.steps), default="A")


@dataclass(slots=True, eq=False)
class Tries:
    """Asks the compiler of a target, and keeps what it said.

    Attributes:
        target: What the calls are compiled for.
        until: When the time is over, by time.monotonic().
        timeout_s: Seconds for each compile.
        limit_bytes: A limit to use instead of the target's.
        on_try: Called with what was changed, and the verdict.
        trace_s: How long it took to trace and lower the step.
        ahead: A change that is compiled beside the unchanged step.
        done: All tries with changes, in their order.
    """

    target: Target
    until: float
    timeout_s: float
    limit_bytes: int | None = None
    on_try: Callable[[str, Fit], object] | None = None
    trace_s: float = 0.0
    ahead: Ahead | None = None
    done: list[Tried] = dataclasses.field(default_factory=list)

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self.until - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether too little time is left to trace a changed step, which nothing interrupts.

        To place a checkpoint takes up to twice as long as to trace the step.
        """
        return self.left_s <= 2 * self.trace_s

    def compile(
        self,
        call: Call,
        proof: Proof,
        share: float = 1.0,
        *,
        child: Child | None = None,
        meanwhile: Callable[[], bool] | None = None,
    ) -> tuple[Fit, ProgramFacts | None]:
        """The verdict on a call, and the facts of its program.

        Args:
            call: The call.
            proof: "assigned" or "compiled".
            share: How much of the time that is left it may take.
            child: The compiler that works on it already.
            meanwhile: Called again and again until the compiler has ended; True ends it at once.
        """
        start = time.monotonic()
        lowered = call.lower()
        timeout_s = max(0.0, min(self.timeout_s, share * self.left_s))
        compiled = compile_for(
            lowered,
            self.target,
            proof=proof,
            timeout_s=timeout_s,
            child=child,
            meanwhile=meanwhile,
        )
        seconds = time.monotonic() - start
        info = functools.partial(call.info, lowered)
        fit = fit_of(lowered, self.target, compiled, self.limit_bytes, seconds, info)
        return fit, _facts(compiled, call, lowered)

    def attempt(self, before: Tried, *more: tuple[Change, Edit], estimates: bool = True) -> Tried:
        """Make more changes to a call, and compile it with all of them.

        What the user's code, or JAX, raises on the way is an error of the verdict.

        Args:
            before: What the changes are made on top of.
            more: The changes and their edits.
            estimates: Whether to compile only what may need less memory.

        Raises:
            NothingToChange: The call does not allow it.
            NotWorthACompile: It is not worth a compile.
        """
        facts: ProgramFacts | None = None
        call = before.call
        taken = self.ahead.take(call, more) if self.ahead is not None else None
        try:
            if taken is not None:
                call, child = taken
                with child:
                    fit, facts = self.compile(call, "assigned", child=child)
            else:
                call = self._changed(call, more, estimates=estimates)
                fit, facts = self.compile(call, "assigned")
        except NothingToChange:
            raise
        except Exception as error:
            _log.debug("%s could not be compiled", more[-1][1].what, exc_info=error)
            fit = self._no_verdict(f"{type(error).__name__}: {_first_line(error)}")
        return self.keep(Tried(call, (*before.steps, *more), fit, facts, len(self.done)))

    def _changed(self, call: Call, more: Sequence[tuple[Change, Edit]], *, estimates: bool) -> Call:
        """The call with more changes, if it may need less memory with them."""
        after = call
        for _, edit in more:
            after = edit.on(after)
        if estimates and not more[-1][1].is_worth_a_compile(call, after):
            raise NotWorthACompile
        return after

    def keep(self, tried: Tried) -> Tried:
        """Remember a try."""
        self.done.append(tried)
        if self.on_try is not None:
            self.on_try(" + ".join(edit.what for _, edit in tried.steps), tried.fit)
        return tried

    def _no_verdict(self, error: str) -> Fit:
        """The verdict on what could not be compiled."""
        report = OomReport(message=OomMessage(""), summary=None, device=None)
        limit = self.limit_bytes or self.target.limit_bytes
        return Fit(None, None, None, limit, self.target.name, "assigned", report, error=error)


def _facts(compiled: Compiled, call: Call, lowered: object) -> ProgramFacts | None:
    if compiled.program is None or compiled.summary is None:
        return None
    message = compiled.message or OomMessage("")
    return ProgramFacts(compiled.program, compiled.summary, message, call.info(lowered))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
