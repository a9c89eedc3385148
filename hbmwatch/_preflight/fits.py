"""Whether a step fits a device, found by compiling it for the device, without the device."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import time
from collections.abc import Callable, Mapping
from typing import Any

from hbmwatch._explain.breakdown import breakdown
from hbmwatch._explain.build import versions
from hbmwatch._explain.conclude import add_findings
from hbmwatch._explain.problems import Problems
from hbmwatch._findings import vmem
from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._jax.request import lower_for
from hbmwatch._jax.user_paths import user_call_info
from hbmwatch._preflight.assigned import Compiled, Proof, compile_for
from hbmwatch._preflight.child import Child
from hbmwatch._preflight.targets import Target, check_fraction, resolve, target_of
from hbmwatch._preflight.verdicts import LIMIT_UNKNOWN, Fit
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import DeviceMemory
from hbmwatch._report.report import OomReport
from hbmwatch._xla.peak import caveats


def fits(
    step: Callable[..., Any],
    /,
    *args: Any,
    on: Any = None,
    proof: Proof = "compiled",
    limit_bytes: int | None = None,
    timeout_s: float = 600.0,
    memory_fraction: float | None = None,
    **kwargs: Any,
) -> Fit:
    """Whether a step fits a device, according to its compiler. You do not need the device.

    Nothing runs, and no device memory is touched: only the shapes of the arguments count. A step
    that branches on `jax.default_backend()` sees the backend of this machine, not the target, so
    that another program may be measured.

    Args:
        step: A function, jitted or not, watched or not; a method; or what flax.nnx.jit or
            equinox.filter_jit returns.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs, on any devices.
        on: The target: "v5e", "v5e:4x4", "v5p", "v6e", "v4", "tpu7x", "h100", "h100:8",
            "h200", "a100-80", "b200"; or jax devices, or a mesh. None: the devices of
            the step's arrays.
        proof: "compiled" compiles to the end; "assigned" stops at XLA's buffer assignment, which
            has the same peak and total in a fraction of the time, but does not count the code. A
            compiler that finishes before it is stopped gives "compiled", and so does a rejection.
        limit_bytes: A limit to use instead of the device's.
        timeout_s: Seconds until the compiler is killed; the time to trace the step is not limited.
        memory_fraction: The share of a GPU's memory that the program gets; None: the share that
            JAX reserves.
        kwargs: Keyword arguments of the step.

    Raises:
        ValueError: The target is unknown, the step runs on more devices than the target has, or an
            option has a value that is not allowed.
        ImportError: The target's compiler is not installed.
        TypeError: The step cannot be lowered for the target.
    """
    check_options(proof, limit_bytes, timeout_s, memory_fraction)
    start = time.monotonic()
    target, lowered, compiled = compiled_step(
        step, args, kwargs, on, proof, timeout_s, memory_fraction
    )
    call = functools.partial(user_call_info, lowered, step, args, kwargs)
    return fit_of(lowered, target, compiled, limit_bytes, time.monotonic() - start, call)


def check_options(
    proof: Any, limit_bytes: Any, timeout_s: Any, memory_fraction: Any = None
) -> None:
    """Refuse options without a meaning before a compiler starts.

    Raises:
        ValueError: One of them has none.
    """
    if proof not in ("compiled", "assigned"):
        raise ValueError(f"proof must be 'compiled' or 'assigned', not {proof!r}")
    is_count = isinstance(limit_bytes, numbers.Integral) and not isinstance(limit_bytes, bool)
    if limit_bytes is not None and not (is_count and limit_bytes > 0):
        raise ValueError(
            f"limit_bytes must be a whole number of bytes above 0, not {limit_bytes!r}"
        )
    check_seconds("timeout_s", timeout_s)
    if memory_fraction is not None:
        check_fraction("memory_fraction", memory_fraction)


def check_seconds(name: str, seconds: Any) -> None:
    """Refuse what is no time.

    Raises:
        ValueError: It is no number of seconds.
    """
    # A time that is not a number (nan) would never be over.
    if not (isinstance(seconds, (int, float)) and seconds >= 0):
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {seconds!r}")


def compiled_step(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    on: Any,
    proof: Proof,
    timeout_s: float,
    memory_fraction: float | None = None,
) -> tuple[Target, Any, Compiled]:
    """The target, the lowered step, and the compiler's answer.

    The compiler's process starts up while the step is traced.
    """
    if on is None:
        lowered = lower_for(step, args, kwargs, None)
        target = target_of(lowered, memory_fraction)
        return target, lowered, compile_for(lowered, target, proof=proof, timeout_s=timeout_s)
    target = resolve(on, memory_fraction)
    with Child(target.platform) as child:
        lowered = lower_for(step, args, kwargs, target.platform)
        compiled = compile_for(lowered, target, proof=proof, timeout_s=timeout_s, child=child)
    return target, lowered, compiled


def fit_of(
    lowered: Any,
    target: Target,
    compiled: Compiled,
    limit_bytes: int | None = None,
    seconds: float = 0.0,
    call: Callable[[], CallInfo] | None = None,
) -> Fit:
    """The verdict on a compiled step.

    Args:
        lowered: The step, lowered.
        target: The target it was compiled for.
        compiled: The compiler's answer.
        limit_bytes: A limit to use instead of the target's.
        seconds: How long everything took.
        call: Gives what is known of its arguments; None: what `lowered` says of them.
    """
    summary = compiled.summary
    fitting = _verdict(compiled, target, limit_bytes)
    limit, limit_note = _limit(compiled, target, limit_bytes, fitting)
    error = compiled.error.strip().splitlines()[0] if compiled.error.strip() else ""
    if fitting is None and not error:
        error = LIMIT_UNKNOWN.format(target)
    return Fit(
        fits=fitting,
        peak_bytes=None if summary is None else summary.peak_bytes,
        total_bytes=compiled.total_bytes,
        limit_bytes=limit,
        target=target.name,
        proof=compiled.proof,
        report=_report(lowered, target, compiled, limit, call),
        seconds=seconds,
        error=error,
        limit_note=limit_note,
        code_bytes=_code_bytes(compiled, limit),
        cpu_seconds=compiled.cpu_seconds,
    )


def _limit(
    compiled: Compiled, target: Target, limit_bytes: int | None, fitting: bool | None
) -> tuple[int | None, str]:
    """The limit that decided, and what it rests on.

    A limit above the device's own does not decide where the compiler refused.
    """
    refused_at = compiled.message.limit_bytes if compiled.message is not None else None
    device = target.limit_bytes if target.limit_bytes is not None else refused_at
    note = target.limit_note if target.limit_bytes is not None else ""
    is_device = limit_bytes is None or (
        fitting is False
        and (compiled.accepted is False or target.platform == "tpu")
        and device is not None
        and device < limit_bytes
    )
    return (device, note) if is_device else (limit_bytes, "")


def _verdict(compiled: Compiled, target: Target, limit_bytes: int | None) -> bool | None:
    """Whether it fits: by the compiler, or by the limit if the compiler checks none.

    A libtpu whose limit was not measured may check less than the total: 0.0.17 leaves out outputs.
    """
    if not compiled.accepted:
        return compiled.accepted
    is_tpu = target.platform == "tpu"
    is_own = limit_bytes is None or (is_tpu and bool(target.limit_note))
    if limit_bytes is None and is_tpu and (not target.limit_note or compiled.total_bytes is None):
        return True
    limits = [limit_bytes, target.limit_bytes if is_own else None]
    known = [limit for limit in limits if limit is not None]
    if not known or compiled.total_bytes is None:
        return None
    return compiled.total_bytes + (compiled.code_bytes or 0) <= min(known)


def _code_bytes(compiled: Compiled, limit: int | None) -> int | None:
    """The size of the code; of a program that was refused only with it, by how much it was."""
    total, message = compiled.total_bytes, compiled.message
    if message is None or total is None or limit is None or message.exceeded_by_bytes is None:
        return compiled.code_bytes
    code_bytes = message.exceeded_by_bytes + limit - total
    return code_bytes if total < limit and code_bytes > 0 else None


def _report(
    lowered: Any,
    target: Target,
    compiled: Compiled,
    limit: int | None,
    call_of: Callable[[], CallInfo] | None,
) -> OomReport:
    """Peak, breakdown and findings; anything unavailable is a sentence in `missing`."""
    missing = Problems()
    attempt = missing.try_or_default
    message = compiled.message or OomMessage("")
    program, summary = compiled.program, compiled.summary
    read = call_of or functools.partial(call_info, lowered)
    call: CallInfo | None = attempt("argument shapes", None, read)
    count = call.device_count if call is not None and call.device_count else 1
    report = OomReport(
        message=message,
        summary=summary,
        device=DeviceMemory(target.device_kind, count, limit_bytes=limit),
        breakdown={
            **attempt("breakdown", {}, breakdown, program, summary, message),
            **({} if limit is None else {"limit": limit}),
        },
        function=_name(lowered),
        versions=attempt("versions", {}, versions),
    )
    if program is None or summary is None:
        missing.append(compiled.error)
        findings = attempt("findings", (), vmem.find, message)
        return _ended(report, findings, missing)
    missing += attempt("element types", (), caveats, summary)
    report = add_findings(report, summary, program, call, missing)
    return _ended(report, report.findings, missing)


def _ended(report: OomReport, findings: tuple[Any, ...], missing: Problems) -> OomReport:
    """The report with its findings and the sentences of `missing`."""
    return dataclasses.replace(report, findings=findings, missing=tuple(missing))


def _name(lowered: Any) -> str:
    """The function's name, from the module's name."""
    try:
        name = str(lowered.compiler_ir().operation.attributes["sym_name"].value)
    except Exception:  # the name is only shown
        return ""
    return name.removeprefix("jit_")
