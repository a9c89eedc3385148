"""The largest size with which a step fits a device: a search by buffer assignment, then a proof."""

from __future__ import annotations

import dataclasses
import numbers
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from hbmwatch._jax.symbolic import concrete
from hbmwatch._preflight.assigned import Proof
from hbmwatch._preflight.fits import check_options, fits
from hbmwatch._preflight.search import Bracket, Point, ends, halving_tries, search
from hbmwatch._preflight.targets import resolve
from hbmwatch._preflight.verdicts import Fit, Largest

_PROBES = (1.04, 1.12, 1.25, 1.5)


def largest(
    step: Callable[..., Any],
    args_of: Any,
    *,
    on: Any = None,
    multiple_of: int = 1,
    start: int | None = None,
    at_most: int | None = None,
    proof: Proof = "compiled",
    limit_bytes: int | None = None,
    timeout_s: float = 600.0,
    memory_fraction: float | None = None,
    on_try: Callable[[int, Fit], object] | None = None,
) -> Largest:
    """A size with which a step fits, while with the next size it does not.

    The search compiles to XLA's buffer assignment; the answer is then compiled to the end. Memory
    may not grow evenly with the size, so a larger size may fit again. The result says so if the
    search has seen it.

    Args:
        step: As for `fits`.
        args_of: A function from a size to the step's positional arguments, as a tuple. You decide
            what the size is: a batch size, a sequence length, a number of layers. Or a tuple of
            arguments with one symbolic dimension (jax.export.symbolic_shape) in their shapes.
        on: As for `fits`.
        multiple_of: Only multiples of this are tried.
        start: The first size to try; None: the smallest.
        at_most: The largest size to try; None: no limit.
        proof: "compiled" proves the answer by compiling to the end; "assigned" does not.
        limit_bytes: A limit to use instead of the device's.
        timeout_s: Seconds for each compile; the time to trace the step is not limited.
        memory_fraction: The share of a GPU's memory that the program gets; None: the share that
            JAX reserves.
        on_try: Called with each size and its verdict.

    Raises:
        ValueError: As for `fits`; or multiple_of, start or at_most is below 1; or no multiple of
            multiple_of is at most at_most.
        TypeError: args_of does not return a tuple, or has no symbolic dimension.
        Exception: What args_of or the step raises, with a note that lists what was tried before.
    """
    check_options(proof, limit_bytes, timeout_s, memory_fraction)
    for name, number in (("multiple_of", multiple_of), ("start", start), ("at_most", at_most)):
        if number is not None and not (isinstance(number, numbers.Integral) and number > 0):
            raise ValueError(f"{name} must be a whole number above 0, not {number!r}")
    if at_most is not None and at_most < multiple_of:
        raise ValueError(f"no multiple of {multiple_of} is at most {at_most}")
    began = time.monotonic()
    target = resolve(on, memory_fraction) if on is not None else None
    tries = Tries(
        lambda size, how: fits(
            step,
            *_arguments(args_of, size),
            on=target,
            proof=how,
            limit_bytes=limit_bytes,
            timeout_s=timeout_s,
            memory_fraction=memory_fraction,
        ),
        multiple_of,
        on_try,
    )
    limit = limit_bytes if limit_bytes is not None or target is None else target.limit_bytes
    first = max(1, (start or multiple_of) // multiple_of)
    most = None if at_most is None else at_most // multiple_of
    is_own = limit_bytes is None and target is not None and target.platform == "tpu"
    return dataclasses.replace(
        found(tries, limit, is_own, first, most, proof), seconds=time.monotonic() - began
    )


def _arguments(args_of: Any, size: int) -> tuple[Any, ...]:
    """The step's arguments for a size."""
    args = args_of(size) if callable(args_of) else concrete(args_of, size)
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args_of({size}) returned {type(args).__name__}, not a tuple of arguments")
    return tuple(args)


# --- the search -----------------------------------------------------------------------------------


class Ended(Exception):
    """A try gave no verdict; `fit` says why."""

    def __init__(self, size: int, fit: Fit) -> None:
        super().__init__(f"{size}: {fit.error}")
        self.fit = fit


class Tries:
    """The sizes that were tried, in units of multiple_of."""

    def __init__(
        self,
        ask: Callable[[int, Proof], Fit],
        multiple_of: int,
        on_try: Callable[[int, Fit], object] | None,
    ) -> None:
        self._ask = ask
        self._on_try = on_try
        self.multiple_of = multiple_of
        self.fits: dict[int, Fit] = {}
        self.code_bytes = 0

    def ask(self, unit: int, proof: Proof) -> Fit:
        """Try a new size, or prove one that was tried by buffer assignment.

        Raises:
            Ended: There is no verdict.
        """
        known = self.fits.get(unit)
        if known is not None and (proof == "assigned" or known.proof == "compiled"):
            return known
        size = unit * self.multiple_of
        try:
            fit = self._ask(size, proof)
        except BaseException as error:  # of the user's code, or Ctrl-C
            error.add_note(self._note(size))
            raise
        if fit.fits is None:
            raise Ended(size, fit)
        self.fits[unit] = fit
        if self._on_try is not None:
            self._on_try(size, fit)
        if fit.code_bytes is not None:
            self.code_bytes = fit.code_bytes
        return fit

    def _note(self, size: int) -> str:
        """What was tried before an exception."""
        tried = [f"  {unit * self.multiple_of} {fit}" for unit, fit in sorted(self.fits.items())]
        before = ":" if tried else " no other size"
        return "\n".join((f"hbmwatch tried {size}, and before it{before}", *tried))

    def point(self, unit: int) -> Point:
        """Try a size for the search."""
        return self._point(self.ask(unit, "assigned"))

    def points(self) -> dict[int, Point]:
        """All sizes that were tried."""
        return {unit: self._point(fit) for unit, fit in self.fits.items()}

    def _point(self, fit: Fit) -> Point:
        """If the size of the code is unknown, that of the last compile is assumed."""
        fitting = bool(fit.fits)
        if fitting and fit.proof == "assigned" and fit.left_bytes is not None:
            fitting = fit.left_bytes >= self.code_bytes
        return Point(fitting, fit.total_bytes)


def found(
    tries: Tries,
    limit: int | None,
    is_own: bool,
    first: int,
    most: int | None,
    proof: Proof,
) -> Largest:
    """Search, look for larger sizes that fit again, and prove both ends.

    If the limit is the compiler's own, it rematerializes until a size fits. In that case no larger
    size was ever seen to fit again, so the search does not look for one.

    Args:
        tries: Asks the compiler, and remembers its answers.
        limit: The total up to which a size should fit; None if unknown.
        is_own: Whether that is the compiler's own limit.
        first: The first size to try.
        most: The largest size to try.
        proof: How the answer is proved.
    """
    error, undecided = "", None
    try:
        bracket = search(tries.point, limit, start=first, most=most)
        if limit is not None and not is_own and _probe(tries, bracket, first, most):
            bracket = search(tries.point, limit, most=most, known=tries.points())
        while proof == "compiled" and not _is_proved(tries, bracket):
            room = None if limit is None else limit - tries.code_bytes
            bracket = search(tries.point, room, most=most, known=tries.points())
    except Ended as ended:
        error, undecided = str(ended), ended.fit
        bracket = ends(tries.points())
    low, high = bracket.low, bracket.high
    if low is not None and high is None and low != most and not error:
        error = f"sizes up to {low * tries.multiple_of} take no more memory than much smaller ones"
    return _answer(tries, low, high, error, undecided)


def _answer(
    tries: Tries, low: int | None, high: int | None, error: str, undecided: Fit | None
) -> Largest:
    """The result of the search. An undecided verdict is used only if there is no other."""
    if high != (low or 0) + 1:
        high = None
    known = tries.fits.get(low if low is not None else min(tries.fits, default=0), undecided)
    assert known is not None
    above = tries.fits.get(high) if high is not None else None
    sure = known.proof == "compiled" and (above is None or above.proof == "compiled")
    multiple = tries.multiple_of
    return Largest(
        size=None if low is None else low * multiple,
        next_size=None if high is None else high * multiple,
        fit=known,
        tried=MappingProxyType({unit * multiple: fit for unit, fit in tries.fits.items()}),
        proof="compiled" if sure else "assigned",
        multiple_of=multiple,
        error=error,
    )


def _is_proved(tries: Tries, bracket: Bracket) -> bool:
    """Compile both sizes to the end; False if that changes one of the verdicts."""
    if bracket.low is not None and not tries.ask(bracket.low, "compiled").fits:
        return False
    return bracket.high is None or not tries.ask(bracket.high, "compiled").fits


def _probe(tries: Tries, bracket: Bracket, first: int, most: int | None) -> bool:
    """Whether one of a few larger sizes fits again.

    XLA rematerializes near the limit, and memory falls each time it does. Including the probes, the
    search takes at most half as many tries as halving.
    """
    if bracket.high is None:
        return False
    left = halving_tries(bracket.low, first) // 2 - len(tries.fits)
    for factor in _PROBES[: max(0, left)]:
        unit = round(bracket.high * factor)
        if unit in tries.fits or (most is not None and unit > most):
            continue
        if tries.point(unit).fits:
            return True
    return False
