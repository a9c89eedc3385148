"""A changed program, compiled ahead of time from shapes: does it fit, and what is its peak.

jax is imported in functions, so that `import hbmwatch` stays light.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import change_for
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._preflight.assigned import Compiled, Proof, compile_for
from hbmwatch._preflight.fits import fit_of
from hbmwatch._preflight.targets import target_of
from hbmwatch._preflight.variants import NothingToChange, Untraceable, changed, shaped_call, varied
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

Change = Literal["donation", "half-batch", "bfloat16", "sharding"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a changed program needs, by the compiler that would compile it.

    Attributes:
        change: What was changed ("donation of state['params'], state['mu']").
        fits: Whether it fits the device; None where the compiler does not say (GPU and CPU
            compilers never fail for memory, and no limit was given).
        peak_bytes_before: The peak of the program as it was, on one device.
        peak_bytes: The peak of the changed program.
        total_bytes: All that the compiler allocates for the changed program.
        limit_bytes: What the device offers, as far as is known.
        seconds: How long both compiles took.
        error: The first line of why the changed program did not compile; "" where it did.
        proof: What fits rests on: "compiled", also where the compiler refused, or "assigned".
    """

    __module__ = "hbmwatch"

    change: str
    fits: bool | None
    peak_bytes_before: int | None
    peak_bytes: int | None
    total_bytes: int | None = None
    limit_bytes: int | None = None
    seconds: float = 0.0
    error: str = ""
    proof: Proof = "assigned"

    @property
    def saves_bytes(self) -> int | None:
        """By how much the peak fell; None where one of the two is not known."""
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return None
        return self.peak_bytes_before - self.peak_bytes

    def measured(self, finding: Finding) -> Finding:
        """The finding with what was measured in place of what was derived.

        A finding is returned unchanged where the peaks could not be measured.
        """
        if self.saves_bytes is None or self.peak_bytes is None:
            return finding
        fits = {True: "fits", False: "still does not fit", None: "compiles"}[self.fits]
        result = (
            f"; measured: with {self.change} it {fits}, the peak {format_size(self.peak_bytes)}"
        )
        return dataclasses.replace(
            finding,
            saves_bytes=self.saves_bytes,
            certainty="measured",
            evidence=finding.evidence + result,
        )

    def __str__(self) -> str:
        fits = {True: "fits", False: "does not fit", None: "compiles"}[self.fits]
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return f"with {self.change}: {self.error or 'not measured'}"
        return (
            f"with {self.change} the program {fits}: its peak is {format_size(self.peak_bytes)}, "
            f"it was {format_size(self.peak_bytes_before)}"
        )


def verify(
    step: Callable[..., Any],
    *args: Any,
    change: Change | Finding | None = None,
    variant: Callable[..., Any] | None = None,
    paths: Sequence[str] = (),
    axis: str | None = None,
    limit_bytes: int | None = None,
    timeout_s: float = 120.0,
    **kwargs: Any,
) -> Verification:
    """Compile a step as it is and with a change, for the same device, from shapes alone.

    Nothing runs and no device memory is touched: arrays among the arguments are taken by their
    shapes. Both compile in a child process, to XLA's buffer assignment, which has the peak and the
    total of a whole compile. `fits` says whether a step fits a device that is not there.

    Args:
        step: A jitted function, or one that watch_hbm returned: what has `.lower`.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs.
        change: "donation" of what comes back updated, "half-batch", "bfloat16" arguments, or
            "sharding" of replicated arguments; or a Finding, for the change that it advises.
        variant: A function with the same arguments to compile instead of step (with jax.checkpoint
            in its place, say). A jitted one keeps its own options; another one gets the donation
            and the shardings of step.
        paths: The argument leaves to change, by the beginning of their pytree path; those that the
            figures point to where it is empty.
        axis: The mesh axis for "sharding"; the largest where it is None.
        limit_bytes: What the device offers, where the compiler does not say (GPU, CPU).
        timeout_s: Seconds for each compile; then the compiler is killed.
        kwargs: Keyword arguments of the step.

    Raises:
        TypeError: step has no `.lower`.
        ValueError: Nothing to change was asked for or found, or nothing that we can try.
    """
    wanted = _wanted(change, variant)
    start = time.perf_counter()
    call = shaped_call(step, args, kwargs)
    target = target_of(call.lowered)
    before = compile_for(call.lowered, target, timeout_s=timeout_s)
    facts = _facts(before, call.info)
    try:
        if variant is not None:
            what, lowered = varied(call, variant)
        else:
            what, lowered = changed(call, facts, wanted, tuple(paths), axis)
    except NothingToChange as nothing:
        raise ValueError(str(nothing)) from None
    if isinstance(lowered, Untraceable):
        return _verification(what, before, None, lowered.error, time.perf_counter() - start)
    compiled = compile_for(lowered, target, timeout_s=timeout_s)
    after = fit_of(lowered, target, compiled, limit_bytes)
    return _verification(what, before, after, "", time.perf_counter() - start)


def _wanted(change: Change | Finding | None, variant: object) -> str:
    """The change that was asked for.

    Raises:
        ValueError: None, both, or one that we cannot try ourselves.
    """
    if (change is None) == (variant is None):
        raise ValueError("verify needs either change=... or variant=...")
    if variant is not None:
        return "variant"
    name: object = change
    if isinstance(change, Finding):
        name = change_for(change.slug) or change.slug
    if name not in get_args(Change):
        choices = ", ".join(map(repr, get_args(Change)))
        raise ValueError(
            f"{name!r} cannot be tried from shapes: choose one of {choices}, or pass variant=..."
        )
    return str(name)


# --- what both compiles say -----------------------------------------------------------------------


def _facts(before: Compiled, info: CallInfo) -> ProgramFacts | None:
    """The facts of the program as it was; None where it could not be compiled."""
    if before.program is None or before.summary is None:
        return None
    return ProgramFacts(before.program, before.summary, before.message or OomMessage(""), info)


def _verification(
    what: str, before: Compiled, after: Fit | None, error: str, seconds: float
) -> Verification:
    """What both compiles say together."""
    peak_before = before.summary.peak_bytes if before.summary is not None else None
    if after is None:
        return Verification(what, None, peak_before, None, seconds=seconds, error=error)
    return Verification(
        change=what,
        fits=after.fits,
        peak_bytes_before=peak_before,
        peak_bytes=after.peak_bytes,
        total_bytes=after.total_bytes,
        limit_bytes=after.limit_bytes,
        seconds=seconds,
        error=after.error if after.fits is not None or after.peak_bytes is None else "",
        proof=after.proof,
    )
