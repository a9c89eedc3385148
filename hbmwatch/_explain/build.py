"""Joins message, peak, device and findings into one report; each may be unavailable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from hbmwatch._explain import notes
from hbmwatch._explain.breakdown import breakdown
from hbmwatch._explain.capture import Captured, capture
from hbmwatch._explain.conclude import add_findings
from hbmwatch._explain.donated import remember_lost
from hbmwatch._explain.failure import FailedCall, Proved, Settings
from hbmwatch._explain.holders import with_holders
from hbmwatch._explain.problems import Problems
from hbmwatch._explain.transfer import FailedTransfer, failed_transfer
from hbmwatch._findings import vmem
from hbmwatch._jax.device import deleted_arguments, device_memory, devices_of
from hbmwatch._jax.lowered import CallInfo, array_leaves, call_info
from hbmwatch._jax.lowering import plain_lowered
from hbmwatch._jax.process import this_process
from hbmwatch._jax.user_paths import with_user_paths
from hbmwatch._jax.wrappers import with_bound_arguments
from hbmwatch._profiles import xprof
from hbmwatch._profiles.runs import Kept, keep, keep_for
from hbmwatch._profiles.stored import copy_run, store_report
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.process import Process
from hbmwatch._records.report import DeviceMemory, Transfer
from hbmwatch._report.report import OomReport
from hbmwatch._version import __version__
from hbmwatch._xla.peak import caveats, peak_summary
from hbmwatch._xla.program import Program
from hbmwatch._xla.terms import MEMORY_SPACES

_SECOND_READER_SECONDS = 20.0
_PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "xprof")


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """What the parts of a report are made from; None where it is unavailable."""

    message: OomMessage
    failed: FailedCall
    settings: Settings
    captured: Captured | None
    summary: PeakSummary | None
    call: CallInfo | None
    device: DeviceMemory | None
    process: Process
    transfer: Transfer | None

    @property
    def program(self) -> Program | None:
        """The failing program."""
        return None if self.captured is None else self.captured.program


def build_report(message: OomMessage, failed: FailedCall, settings: Settings) -> OomReport:
    """The report of a failed call; what is unavailable is a sentence in `missing`."""
    problems = Problems()
    attempt = problems.try_or_default
    transfer = attempt("transfer", None, failed_transfer, failed.error)
    lowered = captured = None
    if transfer is None:
        lowered = attempt("lowered program", None, _lowered, failed)
    if settings.capture != "never" and transfer is None:
        captured = attempt("memory peak", None, capture, message, failed, lowered)
    proved = Proved()
    if settings.prove is not None and message.phase == "compile":
        proved = attempt("plan", proved, settings.prove, failed)
    with _without_collections():
        report = _report(message, failed, settings, lowered, captured, transfer, proved, problems)
        report = dataclasses.replace(report, plan=proved.text)
        report = dataclasses.replace(report, missing=tuple(problems))
        if report.run is not None:
            attempt("stored report", None, store_report, report, Path(report.run))
    if report.run is not None and settings.remote is not None:
        report = attempt("remote copy", report, copy_run, report, settings.remote)
    report = dataclasses.replace(report, missing=tuple(problems))
    if report.run is not None:
        keep_for(report, report.local_run or report.run)
    return report


def _report(
    message: OomMessage,
    failed: FailedCall,
    settings: Settings,
    lowered: Any | None,
    captured: Captured | None,
    transfer: FailedTransfer | None,
    proved: Proved,
    problems: Problems,
) -> OomReport:
    """Message, peak, profile and device in one report, and what follows from them."""
    attempt = problems.try_or_default
    summary = None if captured is None else _summary(captured, message, problems)
    if summary is not None:
        problems += attempt("element types", (), caveats, summary)
    call = attempt("argument shapes", None, _call_info, lowered, failed)
    found = None if transfer is None else transfer.devices
    device = attempt("device memory", None, _device_memory, message, failed, lowered, found)
    process = attempt("process", Process(), this_process)
    copied = None if transfer is None else transfer.transfer
    sources = _Sources(message, failed, settings, captured, summary, call, device, process, copied)
    kept = attempt("profile", None, _keep, sources)
    parts = {field: attempt(label, None, make, sources) for field, label, make in _PARTS}
    report = OomReport(
        message=message,
        summary=summary,
        device=device,
        logdir=str(kept.logdir) if kept and kept.xplane else None,
        run=str(kept.run) if kept else None,
        function=failed.function_name,
        process_index=process.index,
        process=process,
        program_is_guess=bool(captured and captured.note),
        transfer=copied,
        **{field: part for field, part in parts.items() if part is not None},
    )
    program = sources.program
    if program is None or summary is None or summary.memory_space != "hbm":
        return dataclasses.replace(report, findings=attempt("findings", (), vmem.find, message))
    return add_findings(report, summary, program, call, problems, proved.measure)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Without garbage collections in this process, for as long as the report takes.

    A report makes many objects and no garbage; every collection meanwhile would walk all that JAX
    and the program hold, which takes as long again as the report. Python can only stop collections
    for all threads at once.
    """
    was_enabled = gc.isenabled()
    try:  # Ctrl-C may come at any moment
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lowered(failed: FailedCall) -> Any | None:
    """The failing program's jax.stages.Lowered."""
    return None if failed.lower is None else plain_lowered(failed.lower())


def _call_info(lowered: Any | None, failed: FailedCall) -> CallInfo | None:
    if lowered is None:
        return None
    args, kwargs = failed.given or (failed.args, failed.kwargs)
    given = array_leaves(*with_bound_arguments(failed.function_object, args, kwargs))
    return with_user_paths(call_info(lowered, failed.previous), given)


def _summary(captured: Captured, message: OomMessage, problems: Problems) -> PeakSummary | None:
    """The peak in the memory space that ran out; None where the program has nothing in it."""
    named = message.memory_space or "hbm"
    space = named if message.platform == "tpu" and named in MEMORY_SPACES else "hbm"
    program = captured.program
    summary = problems.try_or_default("memory peak", None, peak_summary, program, space)
    if summary is None:
        summary = problems.try_or_default(
            "memory peak by XProf",
            None,
            xprof.peak_summary,
            captured.xspace,
            f"{program.module}({program.program_id})",  # as the profile that we keep names it
            space,
            timeout_s=_SECOND_READER_SECONDS,
        )
    if summary is not None and space != "hbm" and not summary.peak_bytes:
        problems.append(f"the compiler records no buffer assignment in {space} for this program")
        return None
    return summary


def _keep(sources: _Sources) -> Kept | None:
    """The run that keeps the profile, or that only the report needs."""
    settings, index = sources.settings, sources.process.index
    is_wanted = settings.capture != "never" and (settings.logdir or settings.remote) is not None
    if sources.captured is None and not is_wanted:
        return None
    xspace = sources.captured.xspace if sources.captured else None
    return keep(xspace, settings.logdir, index)


def _notes(sources: _Sources) -> tuple[str, ...]:
    """How certain it is that this program failed, and the notes on the failure."""
    certainty = sources.captured.note if sources.captured is not None else ""
    found = notes.notes(
        sources.program,
        sources.summary,
        sources.message,
        sources.call,
        sources.device,
        sources.transfer,
    )
    peers = notes.peers(sources.process, sources.settings.exits)
    return (*filter(None, (certainty, peers)), *found)


def _device_memory(
    message: OomMessage, failed: FailedCall, lowered: Any | None, known: list[Any] | None
) -> DeviceMemory | None:
    """What else was on the device; where the devices are unknown, on the first one."""
    args = (failed.args, failed.kwargs, failed.outputs)
    devices = known or devices_of(lowered, args)
    at_run_time = message.phase != "compile"
    if not devices and at_run_time:
        devices = jax.local_devices()[:1]
    deleted = deleted_arguments(failed.function_object, failed.args, failed.kwargs)
    remember_lost(failed.function_name, (array for _, array in deleted))
    paths = tuple(path for path, _ in deleted)
    return with_holders(device_memory(devices, args, paths, at_run_time), args)


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


# Fields of the report: the field, what `missing` calls it, and what makes it.
_PARTS: tuple[tuple[str, str, Callable[[_Sources], Any]], ...] = (
    ("breakdown", "breakdown", lambda s: breakdown(s.program, s.summary, s.message)),
    ("notes", "notes", _notes),
    ("versions", "versions", lambda _: versions()),
)
