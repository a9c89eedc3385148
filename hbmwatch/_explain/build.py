"""Joins message, peak, device and findings into one report, whatever of them can be had."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import jax
import jaxlib.version

from hbmwatch._explain import notes
from hbmwatch._explain.breakdown import breakdown
from hbmwatch._explain.capture import Captured, capture
from hbmwatch._explain.conclude import add_findings
from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._explain.problems import Problems
from hbmwatch._findings import vmem
from hbmwatch._jax.device import deleted_paths, device_memory, devices_of
from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._jax.lowering import plain_lowered
from hbmwatch._profiles import xprof
from hbmwatch._profiles.runs import keep, logdir_of
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import DeviceMemory
from hbmwatch._report.report import OomReport
from hbmwatch._version import __version__
from hbmwatch._xla.peak import caveats, peak_summary
from hbmwatch._xla.terms import MEMORY_SPACES

_SECOND_READER_SECONDS = 20.0
_PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "xprof")


def build_report(message: OomMessage, failure: FailedCall, settings: Settings) -> OomReport:
    """The report of a failed call; what cannot be had is a sentence in `missing`."""
    missing = Problems()
    lowered = missing.attempt("the lowered program", None, _lowered, failure)
    captured = None
    if settings.capture != "never":
        captured = missing.attempt("the memory peak", None, capture, message, failure, lowered)
    with _uncollected():
        report = _joined(message, failure, settings, lowered, captured, missing)
    return dataclasses.replace(report, missing=tuple(missing))


def _joined(
    message: OomMessage,
    failure: FailedCall,
    settings: Settings,
    lowered: Any | None,
    captured: Captured | None,
    missing: Problems,
) -> OomReport:
    """Message, peak, profile and device in one report, and what follows from them."""
    attempt = missing.attempt
    program, summary, logdir = None, None, None
    if captured is not None:
        program = captured.program
        summary = _summary(captured, message, missing)
        logdir = attempt("the profile", None, _keep, captured.xspace, settings.logdir)
        if summary is not None:
            missing += attempt("the reader's caveats", (), caveats, summary)
    device = attempt("the device's memory", None, _device_memory, message, failure, lowered)
    call = attempt("the call's shapes", None, _call, lowered, failure)
    said: tuple[str, ...] = (captured.note,) if captured and captured.note else ()
    said += attempt("the notes", (), notes.notes, program, summary, message, call, device)
    report = OomReport(
        message=message,
        summary=summary,
        device=device,
        breakdown=attempt("the breakdown", {}, breakdown, program, summary, message),
        notes=said,
        logdir=logdir,
        function=failure.function,
        process_index=_process_index(),
        versions=attempt("the versions", {}, versions),
    )
    if program is None or summary is None or summary.memory_space != "hbm":
        found = attempt("the findings", (), vmem.find, message)
        return dataclasses.replace(report, findings=found)
    return add_findings(report, summary, program, call, missing)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collections for a moment.

    A report makes many objects and no garbage; every collection meanwhile would walk all that JAX
    and the program hold, which takes as long again as the report.
    """
    was_enabled = gc.isenabled()
    try:  # Ctrl-C may come at any moment
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lowered(failure: FailedCall) -> Any | None:
    """The failing program's jax.stages.Lowered, taken out of equinox's or flax's."""
    if failure.lower is None:
        return None
    return plain_lowered(failure.lower())


def _call(lowered: Any | None, failure: FailedCall) -> CallInfo | None:
    return None if lowered is None else call_info(lowered, failure.previous)


def _summary(captured: Captured, message: OomMessage, missing: Problems) -> PeakSummary | None:
    """The peak in the memory space that ran out; None where the program has nothing in it."""
    named = message.memory_space or "hbm"
    space = named if message.platform == "tpu" and named in MEMORY_SPACES else "hbm"
    own, program = peak_summary, captured.program
    summary = missing.attempt("the memory peak", None, own, program, space)
    if summary is None:
        summary = missing.attempt(
            "the memory peak by XProf",
            None,
            xprof.peak_summary,
            captured.xspace,
            f"{program.module}({program.program_id})",  # as the profile that we keep names it
            space,
            timeout_s=_SECOND_READER_SECONDS,
        )
    if summary is not None and space != "hbm" and not summary.peak_bytes:
        missing.append(f"the compiler keeps no buffer assignment of {space} for this program")
        return None
    return summary


def _keep(xspace: bytes, logdir: str | None) -> str:
    return logdir_of(keep(xspace, logdir, _process_index()))


def _device_memory(
    message: OomMessage, failure: FailedCall, lowered: Any | None
) -> DeviceMemory | None:
    args = (failure.args, failure.kwargs, failure.outputs)
    devices = devices_of(lowered, args)
    at_run_time = message.phase != "compile"
    if not devices and at_run_time:
        devices = jax.local_devices()[:1]
    deleted = deleted_paths(failure.fun, failure.args, failure.kwargs)
    return device_memory(devices, args, deleted, at_run_time)


def _process_index() -> int:
    try:
        return jax.process_index()
    except Exception:  # no backend
        return 0


@functools.cache
def versions() -> dict[str, str]:
    """The versions that decide what a message and a profile look like."""
    found = {
        "hbmwatch": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
    }
    for package in _PLUGINS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
