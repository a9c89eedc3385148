"""The largest size of a step that fits a device: searched by assignment, proved by compiling."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from hbmwatch._jax.symbolic import concrete
from hbmwatch._preflight.assigned import Proof
from hbmwatch._preflight.fits import fits
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
    """A size for which a step fits, while for the next one it does not.

    The search compiles to XLA's buffer assignment; the answer is then compiled to the end. Memory
    need not grow evenly with the size: a larger size may fit again, which is reported where it was
    seen.

    Args:
        step: As for `fits`.
        args_of: size -> the step's positional arguments, as a tuple. The size may be whatever you
            make of it: a batch, a sequence length, a number of layers. Or a tuple of arguments with
            one symbolic dimension (jax.export.symbolic_shape) in their shapes.
        on: As for `fits`.
        multiple_of: Sizes are multiples of this.
        start: Where to begin; None is the smallest.
        at_most: The largest size to try; None is no limit.
        proof: "compiled" proves the answer by compiling to the end; "assigned" does not.
        limit_bytes: A limit of your own in the place of the device's.
        timeout_s: Seconds for each compile.
        memory_fraction: What share of a GPU's memory the program gets; None is what JAX takes.
        on_try: Called with each size and its verdict.

    Raises:
        ValueError: As for `fits`; or multiple_of, start or at_most allow no size.
        TypeError: args_of gives no tuple, or has no symbolic dimension.
    """
    if multiple_of < 1 or (at_most is not None and at_most < multiple_of):
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
        raise TypeError(f"args_of({size}) gave a {type(args).__name__}, not a tuple of arguments")
    return tuple(args)


# --- the search -----------------------------------------------------------------------------------


class Ended(Exception):
    """A try gave no verdict."""


class Tries:
    """What was tried, in units of multiple_of."""

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
        """Try a size that was not tried, or prove one that was.

        Raises:
            Ended: There is no verdict.
        """
        known = self.fits.get(unit)
        if known is not None and (proof == "assigned" or known.proof == "compiled"):
            return known
        size = unit * self.multiple_of
        fit = self._ask(size, proof)
        if fit.fits is None:
            raise Ended(f"{size}: {fit.error}")
        self.fits[unit] = fit
        if self._on_try is not None:
            self._on_try(size, fit)
        if fit.code_bytes is not None:
            self.code_bytes = fit.code_bytes
        return fit

    def point(self, unit: int) -> Point:
        """A size for the search."""
        return self._point(self.ask(unit, "assigned"))

    def points(self) -> dict[int, Point]:
        """All sizes that were tried."""
        return {unit: self._point(fit) for unit, fit in self.fits.items()}

    def _point(self, fit: Fit) -> Point:
        """Where the code is not known, it is taken to be as large as that of the last compile."""
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

    Where the limit is the compiler's own, it rematerializes until a size fits, and above it
    nothing was seen to fit again.

    Args:
        tries: What asks the compiler, and remembers.
        limit: The total up to which a size should fit; None where it is not known.
        is_own: Whether that is the compiler's own limit.
        first: Where to begin.
        most: The largest size.
        proof: What the answer shall rest on.
    """
    error = ""
    try:
        bracket = search(tries.point, limit, start=first, most=most)
        if limit is not None and not is_own and _probe(tries, bracket, first, most):
            bracket = search(tries.point, limit, most=most, known=tries.points())
        while proof == "compiled" and not _is_proved(tries, bracket):
            room = None if limit is None else limit - tries.code_bytes
            bracket = search(tries.point, room, most=most, known=tries.points())
    except Ended as ended:
        error = str(ended)
        bracket = ends(tries.points())
        if not tries.fits:
            raise
    low, high = bracket.low, bracket.high
    if low is not None and high != low + 1:
        high = None
    known = tries.fits[low if low is not None else min(tries.fits)]
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
    """Compile both ends to the end; False where one of them turns out otherwise."""
    if bracket.low is not None and not tries.ask(bracket.low, "compiled").fits:
        return False
    return bracket.high is None or not tries.ask(bracket.high, "compiled").fits


def _probe(tries: Tries, bracket: Bracket, first: int, most: int | None) -> bool:
    """Try a few larger sizes, as memory may have fallen again; whether one of them fits.

    XLA rematerializes where a program comes near to the memory of the device, and each time it does
    the curve falls. With the probes, the search takes half the tries of halving at most.
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
