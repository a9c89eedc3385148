"""The order in which a plan tries changes, and where it stops."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from jax.extend.core import Literal

from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import NO_TIME, Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.checkpoint import CHECKPOINT
from hbmwatch._preflight.tries import NotWorthACompile, Tried, Tries
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.sizes import format_size

_log = logging.getLogger("hbmwatch")

# How many changes are made together at most.
_MOST_TOGETHER = 3
# Another change is made on top of one that has gained this share of the peak.
_LEAST_GAIN = 0.03
# How many of those that fit by assignment are compiled to the end, until one is accepted.
_MOST_PROVED = 3
INTERRUPTED = "interrupted"
_MORE_TIME = "; allow more time with seconds=... (--seconds)"


class Search:
    """A search for changes with which a call fits.

    Attributes:
        untried: Change -> why it was not tried.
        notes: Sentences on what no change can do.
        error: Why the search ended early; "" otherwise.
    """

    def __init__(self, tries: Tries, changes: Sequence[Change]) -> None:
        self._tries = tries
        self._changes = changes
        self._least: dict[Tried, int] = {}
        self._left_out: dict[Tried, tuple[Change, Edit]] = {}
        self.untried: dict[str, str] = {}
        self.notes: list[str] = []
        self.error = ""

    def run(self, base: Tried) -> None:
        """Look until something fits, or nothing is left to try; then prove what fits.

        Ctrl-C ends the search, and what was found so far stays.
        """
        try:
            self._find(base)
            self._prove(base)
        except KeyboardInterrupt:
            self.error = INTERRUPTED

    def _find(self, base: Tried) -> None:
        """One change that keeps the values; several; then changes with other values."""
        keeping = [change for change in self._changes if change.kind != "C"]
        if self._is_too_large(base):
            keeping.sort(key=lambda change: not change.frees_arguments)
        if base.fit.fits is None and self._tries.ahead is not None and self._tries.ahead.has_passed:
            # Others may take the compiler as long as the unchanged step.
            keeping.sort(key=lambda change: change is not CHECKPOINT)
        on_top = base
        for change in keeping:
            found = self._one(on_top, change)
            if any(tried.fit.fits for tried in found):
                return self._skip(keeping)
            on_top = self._kept(on_top, change, found)
            if on_top is not base and self._tries.ahead is not None:
                self._tries.ahead.close()  # it works on the step without the change that is kept
        if self._together(on_top, keeping):
            return None
        for change in self._changes:
            if change.kind == "C":
                if any(tried.fit.fits for tried in self._one(on_top, change)):
                    return None
        return None

    def _kept(self, before: Tried, change: Change, found: Sequence[Tried]) -> Tried:
        """The changes that the next ones are added to.

        A change without recomputation costs nothing, so it is kept if it gained something. So is
        one without which the arguments and outputs alone are too large. It is dropped again at the
        end, if what fits does not need it.
        """
        if self._is_too_large(before):
            return next((tried for tried in found if not self._is_too_large(tried)), before)
        known = [tried for tried in found if tried.fit.peak_bytes is not None]
        if change.kind != "A" or not found or (not known and not change.stays):
            return before
        best = min(known, key=lambda tried: tried.fit.peak_bytes or 0) if known else found[-1]
        return best if change.stays or _gains(before, best) else before

    def _skip(self, changes: Sequence[Change]) -> None:
        """Say of the changes after the one that fits that they were not needed."""
        tried = {change.name for one in self._tries.done for change, _ in one.steps}
        for change in changes:
            if change.name not in tried:
                self.untried.setdefault(change.name, "the step fits with an earlier change")

    # --- one change -------------------------------------------------------------------------------

    def _one(self, before: Tried, change: Change) -> list[Tried]:
        """Try the edits of one change on a call; the first that fits may end it."""
        found: list[Tried] = []
        if self._is_hopeless(before, change):
            return found
        asked = Asked(limit_bytes=before.fit.limit_bytes, until=self._tries.until)
        edits = change.edits(before.call, before.facts, asked)
        edit = self._next(change, edits, None)
        while edit is not None:
            verdict = None
            try:
                found.append(self._tries.attempt(before, (change, edit)))
                verdict = found[-1].fit
            except NothingToChange as reason:
                self.untried.setdefault(change.name, str(reason))
                if isinstance(reason, NotWorthACompile):
                    self._left_out.setdefault(before, (change, edit))
            if verdict is not None and verdict.fits and not change.repeats:
                break
            edit = self._next(change, edits, verdict)
        edits.close()
        if found:
            self.untried.pop(change.name, None)
        return found

    def _next(self, change: Change, edits: Edits, verdict: Fit | None) -> Edit | None:
        """The next edit, given the verdict on the one before; None where there is none."""
        try:
            edit = None if self._tries.is_over else edits.send(verdict)
            if not self._tries.is_over:
                return edit
            self.error = NO_TIME
            self.untried.setdefault(change.name, NO_TIME)
        except StopIteration:
            pass
        except NothingToChange as reason:
            self.untried.setdefault(change.name, str(reason))
        except Exception as error:  # a program that the change was not written for
            _log.debug("%s could not be tried", change.name, exc_info=error)
            self.untried.setdefault(change.name, f"{type(error).__name__}: {error}")
        return None

    # --- several changes --------------------------------------------------------------------------

    def _together(self, base: Tried, changes: Sequence[Change]) -> bool:
        """Make changes on top of those that gained most; True if some fit together."""
        best = self._lowest(base)
        for _ in range(_MOST_TOGETHER - 1):
            if best is None:
                break
            if self._on_top(best, changes):
                return True
            best = self._lowest(best)
        # A checkpoint is made before the program is rewritten, and may gain nothing by itself.
        again = self._lowest(base, lambda change, edit: edit.traces_again, gains=False)
        if again is None and base in self._left_out and not self._tries.is_over:
            again = self._tries.attempt(base, self._left_out[base], estimates=False)
            self.untried.pop(again.steps[-1][0].name, None)
            if again.fit.fits:
                return True
        return again is not None and self._on_top(again, changes)

    def _on_top(self, before: Tried, changes: Sequence[Change]) -> bool:
        """Make each change that was not made yet on top of others; True if one fits."""
        names = {change.name for change, _ in before.steps}
        if any(tried.steps[:-1] == before.steps for tried in self._tries.done):
            return False
        for change in changes:
            is_new = change.name not in names or change.stacks
            if is_new and not self._tries.is_over:
                if any(tried.fit.fits for tried in self._one(before, change)):
                    return True
        return False

    def _lowest(
        self,
        before: Tried,
        wanted: Callable[[Change, Edit], bool] = lambda change, edit: True,
        *,
        gains: bool = True,
    ) -> Tried | None:
        """The try on top of a call with the lowest peak, if it gained enough."""
        known = [
            (tried.fit.peak_bytes, tried.number, tried)
            for tried in self._tries.done
            if tried.fit.peak_bytes is not None
            and tried.steps[: len(before.steps)] == before.steps
            and len(tried.steps) == len(before.steps) + 1
            and wanted(*tried.steps[-1])
        ]
        if not known:
            return None
        _, _, best = min(known, key=lambda each: each[:2])
        return best if not gains or _gains(before, best) else None

    # --- the proof --------------------------------------------------------------------------------

    def _prove(self, base: Tried) -> None:
        """Compile the best try to the end, without the changes that it does not need."""
        for _ in range(_MOST_PROVED):
            fitting = [tried for tried in self._tries.done if tried.fit.fits]
            if not fitting:
                return
            best = self._needed(base, min(fitting, key=self.rank))
            if best.fit.proof == "compiled":
                return
            if self._tries.is_over:
                self.error = f"{NO_TIME} to compile the best change fully{_MORE_TIME}"
                return
            fit, facts = self._tries.compile(best.call, "compiled")
            if fit.fits is None:
                more = _MORE_TIME if self._tries.is_over else ""
                self.error = f"the best change was not compiled fully: {fit.error}{more}"
                return
            proved = dataclasses.replace(best, fit=fit, facts=facts)
            self._tries.done[self._tries.done.index(best)] = proved
            if fit.fits:
                return

    def _needed(self, base: Tried, best: Tried) -> Tried:
        """The try without each change that it also fits without."""
        for dropped in range(len(best.steps) if len(best.steps) > 1 else 0):
            rest = best.steps[:dropped] + best.steps[dropped + 1 :]
            numbers = best.steps[dropped][1].numbers_values
            if self._tries.is_over or (
                numbers and any(edit.numbers_values for _, edit in best.steps[dropped + 1 :])
            ):
                continue
            known = [tried for tried in self._tries.done if tried.steps == rest]
            try:
                tried = known[0] if known else self._tries.attempt(base, *rest)
            except NothingToChange:
                continue
            if tried.fit.fits:
                return self._needed(base, tried)
        return best

    def rank(self, tried: Tried) -> tuple[int, str, int, int, int, int]:
        """How good a try is, lowest first: fitting, by kind, by how much is changed, by order."""
        order = {change.name: place for place, change in enumerate(self._changes)}
        fits = {True: 0, False: 1, None: 2}[tried.fit.fits]
        peak = (tried.fit.peak_bytes or 0) if not tried.fit.fits else 0
        change, edit = tried.steps[-1]
        if fits:
            return fits, "", peak, 0, 0, tried.number
        return fits, tried.kind, len(tried.steps), order[change.name], edit.cost, tried.number

    # --- what no change can do --------------------------------------------------------------------

    def _is_too_large(self, tried: Tried) -> bool:
        """Whether the arguments and outputs alone are too large; it is noted."""
        if tried not in self._least:
            self._least[tried] = least_bytes(tried.call)
        limit, least = tried.fit.limit_bytes, self._least[tried]
        if limit is None or least <= limit:
            return False
        note = (
            f"arguments and outputs alone need {format_size(least)} on a device, even if they are "
            f"spread over all devices of the step; {format_size(limit)} is available"
        )
        if not self.notes:
            self.notes.append(note)
        return True

    def _is_hopeless(self, before: Tried, change: Change) -> bool:
        """Whether the arguments and outputs alone are too large, whatever this change does."""
        if change.frees_arguments or not self._is_too_large(before):
            return False
        self.untried.setdefault(
            change.name, "this change makes neither arguments nor outputs smaller"
        )
        return True


def _gains(before: Tried, after: Tried) -> bool:
    """Whether the peak fell enough to build on."""
    old, new = before.fit.peak_bytes, after.fit.peak_bytes
    return new is not None and (old is None or new <= (1 - _LEAST_GAIN) * old)


def least_bytes(call: Call) -> int:
    """The bytes on a device of arguments and outputs spread over all devices of the step.

    Outputs that could reuse the memory of an argument are not counted, and arguments that nothing
    reads or what lies on the host is not either.
    """
    jaxpr = call.jaxpr.jaxpr
    read = {v for equation in jaxpr.eqns for v in equation.invars if not isinstance(v, Literal)}
    read |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    inputs = jaxpr.invars[len(call.constants) :]
    arguments = sum(
        leaf.nbytes
        for leaf, v in zip(call.arguments, inputs, strict=True)
        if v in read and not leaf.is_on_host
    )
    pairs = set(call.updated().values())
    outputs = sum(
        leaf.nbytes for o, leaf in enumerate(call.outputs) if o not in pairs and not leaf.is_on_host
    )
    return (arguments + outputs) // max(1, len(call.devices))
