"""Whether a changed program fits, and its peak: compiled ahead of time, from shapes.

jax is imported in functions, so that `import hbmwatch` stays light.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._preflight.assigned import Compiled, Proof, compile_for
from hbmwatch._preflight.changes import BY_NAME
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked, Edit
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.changes.variants import variant as replacing
from hbmwatch._preflight.fits import check_options, fit_of
from hbmwatch._preflight.targets import target_of
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

Change = Literal["donation", "half-batch", "bfloat16", "sharding"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a changed program needs, according to the compiler of its device.

    It is true if the changed program fits, and false if it does not or if that is unknown.

    Attributes:
        change: What was changed ("donating state['params'], state['mu']").
        fits: Whether it fits the device; None if unknown (GPU and CPU compilers do not check
            memory, and no limit is known or was given).
        peak_bytes_before: The peak of the program as it was, on one device.
        peak_bytes: The peak of the changed program.
        total_bytes: All that the compiler allocates for the changed program.
        limit_bytes: The bytes that a program can use on the device; None if unknown.
        seconds: How long both compiles took.
        error: The first line of the error with which the changed program did not compile; "" if it
            compiled.
        proof: "compiled" if the compiler finished, by accepting or by rejecting the program;
            "assigned" if it was stopped at XLA's buffer assignment.
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
        """By how much the peak fell; None if one of both peaks is unknown."""
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return None
        return self.peak_bytes_before - self.peak_bytes

    def __bool__(self) -> bool:
        return self.fits is True

    def measured(self, finding: Finding) -> Finding:
        """The finding, with the measured saving instead of the derived one.

        The finding is returned unchanged if a peak is unknown.
        """
        if self.saves_bytes is None or self.peak_bytes is None:
            return finding
        fits = {True: "fits", False: "still does not fit", None: "compiles"}[self.fits]
        evidence = finding.evidence.rstrip(".")
        same = "" if self.saves_bytes else ", unchanged"
        result = f". Measured ({self.change}): {fits}, peak {format_size(self.peak_bytes)}{same}."
        return dataclasses.replace(
            finding,
            saves_bytes=self.saves_bytes,
            certainty="measured",
            evidence=evidence + result,
        )

    def __str__(self) -> str:
        fits = {True: "fits", False: "does not fit", None: "compiles"}[self.fits]
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return f"{self.change}: {self.error or 'not measured'}"
        peak, before = format_size(self.peak_bytes), format_size(self.peak_bytes_before)
        change = f"(was {before})" if self.saves_bytes else "(unchanged: this frees nothing)"
        return f"{self.change}: {fits}, peak {peak} {change}{self._left()}"

    def _left(self) -> str:
        """How far the changed program is from the limit; "" where that is not known."""
        if self.total_bytes is None or self.limit_bytes is None or self.fits is None:
            return ""
        left = self.limit_bytes - self.total_bytes
        if self.fits == (left < 0):  # the compiler counts more than its own allocations
            return ""
        of_limit = f"of {format_size(self.limit_bytes)}"
        if left >= 0:
            return f"; enough: {format_size(left)} {of_limit} is left"
        return f"; not enough: {format_size(-left)} above {format_size(self.limit_bytes)} remains"


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

    Nothing runs, and no device memory is touched: only the shapes of the arguments count. Both
    compile in a child process, to XLA's buffer assignment, which has the same peak and total as a
    whole compile. To ask about another device, use `fits`.

    Args:
        step: A jitted function, or one that watch_hbm returned; it needs a `.lower`.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs.
        change: "donation" donates the arguments that are returned updated, "half-batch" halves the
            batch, "bfloat16" casts float arguments, and "sharding" shards replicated arguments. Or
            a Finding, for the change that it advises.
        variant: A function with the same arguments to compile instead of `step`, for example with
            jax.checkpoint where you would put it. A jitted variant keeps its own options; any other
            gets the donation and the shardings of `step`.
        paths: The argument leaves to change, by the first part of their pytree paths. If empty,
            they are chosen from the figures of the program.
        axis: The mesh axis for "sharding"; None: all axes that do not shard an argument yet.
        limit_bytes: The bytes that a program can use on the device, if the compiler does not check
            memory (GPU, CPU).
        timeout_s: Seconds for each compile; then the compiler is killed. The time to trace the
            step is not limited.
        kwargs: Keyword arguments of the step.

    Raises:
        TypeError: step has no `.lower`.
        ValueError: Neither or both of `change` and `variant` were given, `change` is not one of
            those above, the program has nothing that it could apply to, or limit_bytes or timeout_s
            has a value that is not allowed.
    """
    check_options("assigned", limit_bytes, timeout_s)
    wanted, asked = _wanted(change, variant), Asked(tuple(paths), axis)
    start = time.perf_counter()
    if not hasattr(step, "lower"):
        raise TypeError(
            "verify needs a jitted function, or one that watch_hbm returned (it has no .lower)"
        )
    call = call_of(step, args, kwargs, None)
    lowered = call.lower()
    target = target_of(lowered)
    before = compile_for(lowered, target, timeout_s=timeout_s)
    facts = _facts(before, call.info(lowered))
    try:
        edit = replacing(variant) if variant is not None else _edit(call, facts, wanted, asked)
    except NothingToChange as nothing:
        raise ValueError(str(nothing)) from None
    try:
        lowered = edit.on(call).lower()
    except NothingToChange as nothing:
        raise ValueError(str(nothing)) from None
    except Exception as error:  # the user's code may not take other shapes or dtypes
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return _verification(edit.what, before, None, reason, time.perf_counter() - start)
    compiled = compile_for(lowered, target, timeout_s=timeout_s)
    after = fit_of(lowered, target, compiled, limit_bytes)
    return _verification(edit.what, before, after, "", time.perf_counter() - start)


def _edit(call: Call, facts: ProgramFacts | None, wanted: str, asked: Asked) -> Edit:
    """The first way to make a change.

    Raises:
        NothingToChange: There is none.
    """
    return next(BY_NAME[wanted].edits(call, facts, asked))


def _wanted(change: Change | Finding | None, variant: object) -> str:
    """The name of the requested change.

    Raises:
        ValueError: Neither or both were given, or verify cannot apply the change itself.
    """
    if (change is None) == (variant is None):
        raise ValueError("verify needs either change=... or variant=...")
    if variant is not None:
        return "variant"
    name: object = change
    if isinstance(change, Finding):
        name = change.change or change.slug
    if name not in get_args(Change):
        choices = ", ".join(map(repr, get_args(Change)))
        raise ValueError(
            f"cannot apply {name!r} automatically: choose one of {choices}, or pass variant=..."
        )
    return str(name)


# --- what both compiles say -----------------------------------------------------------------------


def _facts(before: Compiled, info: CallInfo) -> ProgramFacts | None:
    """The facts of the program before the change; None if it could not be compiled."""
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
