"""Joins message, peak, device and findings into one report, whatever of them can be had."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from hbmwatch import _capture, _device, _findings, _hlo, _runs, _terms, _xprof
from hbmwatch._call import CallInfo, call_info
from hbmwatch._failure import Failure, Settings
from hbmwatch._records import (
    DeviceMemory,
    Finding,
    OomMessage,
    OomReport,
    PeakSummary,
    ProfileError,
)

T = TypeVar("T")

_log = logging.getLogger("hbmwatch")

_SECOND_READER_SECONDS = 20.0
_PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "xprof")


class _Missing(list[str]):
    """The sentences for what could not be had."""

    def attempt(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """What `make` gives; where it fails, `otherwise` and a sentence."""
        try:
            return make()
        except ProfileError as error:
            self.append(f"{what}: {error}")
        except Exception as error:
            self.append(f"{what}: {type(error).__name__}: {error}")
            _log.debug("%s could not be had", what, exc_info=error)
        return otherwise


def explain(message: OomMessage, failure: Failure, settings: Settings) -> OomReport:
    """The report of a failed call; what cannot be had is a sentence in `missing`."""
    missing = _Missing()
    lowered = missing.attempt("the lowered program", functools.partial(_lowered, failure), None)
    captured = None
    if settings.capture != "never":
        capture = functools.partial(_capture.capture, message, failure, lowered)
        captured = missing.attempt("the memory peak", capture, None)
    summary = None
    if captured is not None:
        summary = _summary(captured, message, missing)
        missing += captured.program.caveats
    logdir = None
    if captured:
        keep = functools.partial(_keep, captured.xspace, settings.logdir)
        logdir = missing.attempt("the profile", keep, None)
    device = missing.attempt(
        "the device's memory", functools.partial(_device_memory, message, failure, lowered), None
    )
    call = missing.attempt("the call's shapes", functools.partial(_call, lowered, failure), None)
    findings: tuple[Finding, ...] = ()
    if captured is not None and summary is not None:
        find = functools.partial(_findings.find, captured.program, summary, message, call)
        findings = missing.attempt("the findings", find, ())
    return OomReport(
        message=message,
        summary=summary and dataclasses.replace(summary, top=settings.top),
        device=device,
        findings=findings,
        notes=(captured.note,) if captured and captured.note else (),
        missing=tuple(missing),
        logdir=logdir,
        function=failure.function,
        process_index=_process_index(),
        versions=_versions(),
        top=settings.top,
    )


def _lowered(failure: Failure) -> Any | None:
    """The failing program's jax.stages.Lowered, taken out of equinox's or flax's."""
    if failure.lower is None:
        return None
    lowered = failure.lower()
    return getattr(lowered, "lowered", lowered)


def _call(lowered: Any | None, failure: Failure) -> CallInfo | None:
    return None if lowered is None else call_info(lowered, failure.previous)


def _summary(
    captured: _capture.Captured, message: OomMessage, missing: _Missing
) -> PeakSummary | None:
    """The peak in the memory space that ran out; None where the program has nothing in it."""
    named = message.memory_space or "hbm"
    space = named if message.platform == "tpu" and named in _terms.MEMORY_SPACES else "hbm"
    own = functools.partial(_hlo.peak_summary, captured.program, space)
    summary = missing.attempt("the memory peak", own, None)
    if summary is None:
        second = functools.partial(
            _xprof.peak_summary,
            captured.xspace,
            captured.program.name,
            space,
            timeout_s=_SECOND_READER_SECONDS,
        )
        summary = missing.attempt("the memory peak by XProf", second, None)
    if summary is not None and space != "hbm" and not summary.peak_bytes:
        missing.append(f"the compiler keeps no buffer assignment of {space} for this program")
        return None
    return summary


def _keep(xspace: bytes, logdir: str | None) -> str:
    return _runs.logdir_of(_runs.keep(xspace, logdir, _process_index()))


def _device_memory(
    message: OomMessage, failure: Failure, lowered: Any | None
) -> DeviceMemory | None:
    args = (failure.args, failure.kwargs)
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
        "jaxlib": importlib.metadata.version("jaxlib"),
    }
    for package in _PLUGINS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
