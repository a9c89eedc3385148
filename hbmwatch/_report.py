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

from hbmwatch import (
    _capture,
    _device,
    _findings,
    _hlo,
    _notes,
    _rollup,
    _runs,
    _terms,
    _xprof,
)
from hbmwatch._call import CallInfo, call_info
from hbmwatch._conclusions import concluded
from hbmwatch._failure import Failure, Settings
from hbmwatch._missing import Missing
from hbmwatch._records import DeviceMemory, OomMessage, OomReport, PeakSummary

_SECOND_READER_SECONDS = 20.0
_PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "xprof")


def explain(message: OomMessage, failure: Failure, settings: Settings) -> OomReport:
    """The report of a failed call; what cannot be had is a sentence in `missing`."""
    missing = Missing()
    lowered = missing.attempt("the lowered program", None, _lowered, failure)
    captured = None
    if settings.capture != "never":
        capture = _capture.capture
        captured = missing.attempt("the memory peak", None, capture, message, failure, lowered)
    with _uncollected():
        report = _joined(message, failure, settings, lowered, captured, missing)
    return dataclasses.replace(report, missing=tuple(missing))


def _joined(
    message: OomMessage,
    failure: Failure,
    settings: Settings,
    lowered: Any | None,
    captured: _capture.Captured | None,
    missing: Missing,
) -> OomReport:
    """Message, peak, profile and device in one report, and what follows from them."""
    attempt = missing.attempt
    program, summary, logdir = None, None, None
    if captured is not None:
        program = captured.program
        summary = _summary(captured, message, missing)
        logdir = attempt("the profile", None, _keep, captured.xspace, settings.logdir)
        if summary is not None:
            missing += attempt("the reader's caveats", (), _hlo.caveats, summary)
    device = attempt("the device's memory", None, _device_memory, message, failure, lowered)
    call = attempt("the call's shapes", None, _call, lowered, failure)
    notes: tuple[str, ...] = (captured.note,) if captured and captured.note else ()
    notes += attempt("the notes", (), _notes.notes, program, summary, message, call, device)
    summary = summary and dataclasses.replace(summary, top=settings.top)
    report = OomReport(
        message=message,
        summary=summary,
        device=device,
        breakdown=attempt("the breakdown", {}, _rollup.breakdown, program, summary, message),
        notes=notes,
        logdir=logdir,
        function=failure.function,
        process_index=_process_index(),
        versions=attempt("the versions", {}, _versions),
        top=settings.top,
    )
    if program is None or summary is None or summary.memory_space != "hbm":
        said = attempt("the findings", (), _findings.of_message, message)
        return dataclasses.replace(report, findings=said)
    return concluded(report, summary, program, call, missing)


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


def _lowered(failure: Failure) -> Any | None:
    """The failing program's jax.stages.Lowered, taken out of equinox's or flax's."""
    if failure.lower is None:
        return None
    lowered = failure.lower()
    return getattr(lowered, "lowered", lowered)


def _call(lowered: Any | None, failure: Failure) -> CallInfo | None:
    return None if lowered is None else call_info(lowered, failure.previous)


def _summary(
    captured: _capture.Captured, message: OomMessage, missing: Missing
) -> PeakSummary | None:
    """The peak in the memory space that ran out; None where the program has nothing in it."""
    named = message.memory_space or "hbm"
    space = named if message.platform == "tpu" and named in _terms.MEMORY_SPACES else "hbm"
    own, program = _hlo.peak_summary, captured.program
    summary = missing.attempt("the memory peak", None, own, program, space)
    if summary is None:
        summary = missing.attempt(
            "the memory peak by XProf",
            None,
            _xprof.peak_summary,
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
    return _runs.logdir_of(_runs.keep(xspace, logdir, _process_index()))


def _device_memory(
    message: OomMessage, failure: Failure, lowered: Any | None
) -> DeviceMemory | None:
    args = (failure.args, failure.kwargs, failure.outputs)
    devices = _device.devices_of(lowered, args)
    at_run_time = message.phase != "compile"
    if not devices and at_run_time:
        devices = jax.local_devices()[:1]
    deleted = _device.deleted_paths(failure.fun, failure.args, failure.kwargs)
    return _device.device_memory(devices, args, deleted, at_run_time)


def _process_index() -> int:
    try:
        return jax.process_index()
    except Exception:  # no backend
        return 0


@functools.cache
def _versions() -> dict[str, str]:
    """The versions that decide what a message and a profile look like."""
    import hbmwatch

    versions = {
        "hbmwatch": hbmwatch.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
    }
    for package in _PLUGINS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
