"""A changed program, compiled ahead of time from shapes: does it fit, and what is its peak.

jax is imported in functions, so that `import hbmwatch` stays light.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import change_for
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._messages.parse import parse_oom
from hbmwatch._preflight.variants import NothingToChange, Untraceable, changed, shaped_call, varied
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program

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

    @property
    def saves_bytes(self) -> int | None:
        """By how much the peak fell; None where one of the two is not known."""
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return None
        return self.peak_bytes_before - self.peak_bytes

    def measured(self, finding: Finding) -> Finding:
        """The finding with what was measured in place of what was derived.

        A finding of which nothing could be measured comes back as it is.
        """
        if self.saves_bytes is None or self.peak_bytes is None:
            return finding
        fits = {True: "fits", False: "still does not fit", None: "compiles"}[self.fits]
        said = f"; measured: with {self.change} it {fits}, the peak {format_size(self.peak_bytes)}"
        return dataclasses.replace(
            finding,
            saves_bytes=self.saves_bytes,
            certainty="measured",
            evidence=finding.evidence + said,
        )

    def __str__(self) -> str:
        fits = {True: "fits", False: "does not fit", None: "compiles"}[self.fits]
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return f"with {self.change}: {self.error or 'not measured'}"
        return (
            f"with {self.change} the program {fits}: its peak is {format_size(self.peak_bytes)}, "
            f"it was {format_size(self.peak_bytes_before)}"
        )


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What one compile left."""

    program: Program | None
    summary: PeakSummary | None
    message: OomMessage | None
    error: str


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
    shapes. On a TPU (or a TPU topology) a program that does not fit costs the compiler a fraction
    of a second, one that fits as long as it always does.

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
        timeout_s: How many seconds to wait for each compile. The compiler cannot be stopped: a
            compile that takes longer goes on in the background.
        kwargs: Keyword arguments of the step.

    Raises:
        TypeError: step has no `.lower`.
        ValueError: Nothing to change was asked for or found, or nothing that we can try.
    """
    wanted = _wanted(change, variant)
    start = time.perf_counter()
    call = shaped_call(step, args, kwargs)
    before = _compile(call.lowered, timeout_s)
    evidence = _evidence(before, call.info)
    try:
        if variant is not None:
            what, lowered = varied(call, variant)
        else:
            what, lowered = changed(call, evidence, wanted, tuple(paths), axis)
    except NothingToChange as nothing:
        raise ValueError(str(nothing)) from None
    after = _Compiled(None, None, None, "")
    if isinstance(lowered, Untraceable):
        after = dataclasses.replace(after, error=lowered.error)
    else:
        after = _compile(lowered, timeout_s)
    return _verification(what, before, after, limit_bytes, time.perf_counter() - start)


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


# --- compiling ------------------------------------------------------------------------------------


def _compile(lowered: Any, timeout_s: float) -> _Compiled:
    """Compile, and read the program from XLA's dump, failed or not; gives up after timeout_s."""
    found: list[_Compiled] = []
    thread = threading.Thread(
        target=lambda: found.append(_dumped(lowered)), name="hbmwatch-verify", daemon=True
    )
    thread.start()
    thread.join(timeout_s)
    if found:
        return found[0]
    return _Compiled(None, None, None, f"still compiling after {timeout_s:g} s")


def _dumped(lowered: Any) -> _Compiled:
    """Compile into a folder of its own, and read what XLA left there."""
    with tempfile.TemporaryDirectory(prefix="hbmwatch-verify-") as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_pass_re": "^$",
        }
        error = ""
        message = None
        try:
            lowered.compile(compiler_options=options)
        except Exception as failure:  # what does not fit is an answer
            error = str(failure)
            message = parse_oom(error)
        dumped = sorted(Path(folder).glob("*after_optimizations.hlo.pb"), key=_size)
        if not dumped:
            return _Compiled(None, None, message, error or "XLA left no dump of the program")
        program = parse_program(dumped[-1].read_bytes(), "verified")
    return _Compiled(program, peak_summary(program), message, error)


def _size(path: Path) -> int:
    return path.stat().st_size


def _evidence(before: _Compiled, info: CallInfo) -> ProgramFacts | None:
    """The figures of the program as it was; None where it could not be compiled."""
    if before.program is None or before.summary is None:
        return None
    return ProgramFacts(before.program, before.summary, before.message or OomMessage(""), info)


def _verification(
    what: str, before: _Compiled, after: _Compiled, limit_bytes: int | None, seconds: float
) -> Verification:
    """What both compiles say together."""
    known = [m.limit_bytes for m in (after.message, before.message) if m is not None]
    limit = limit_bytes or next((size for size in known if size is not None), None)
    total = after.summary.total_allocation_bytes if after.summary is not None else None
    fits: bool | None = None
    if after.message is not None:
        fits = False
    elif limit is not None and total is not None:
        fits = total <= limit
    return Verification(
        change=what,
        fits=fits,
        peak_bytes_before=before.summary.peak_bytes if before.summary is not None else None,
        peak_bytes=after.summary.peak_bytes if after.summary is not None else None,
        total_bytes=total,
        limit_bytes=limit,
        seconds=seconds,
        error=after.error.splitlines()[0] if after.error else "",
    )
