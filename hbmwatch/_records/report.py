"""The data of a report: the message, the peak, the device, the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.process import Process
from hbmwatch._records.text import clean

Certainty = Literal["measured", "derived", "hint"]


@dataclass(frozen=True, slots=True)
class LiveArrays:
    """Live arrays of one shape and dtype that are not arguments of the failed call.

    Attributes:
        shape: The global shape.
        dtype: The dtype's name ("float32").
        count: How many there are.
        size_bytes: Bytes of all of them on the fullest device.
        held_by: Variables of your code that hold such arrays ("history in main(), train.py");
            empty if none was found.
    """

    __module__ = "hbmwatch"

    shape: tuple[int, ...]
    dtype: str
    count: int
    size_bytes: int
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The device's memory when the program failed at run time.

    Attributes:
        device_kind: The device ("TPU v5 lite", "NVIDIA H100 80GB HBM3").
        device_count: The number of devices that the program runs on.
        limit_bytes: What the allocator may use on one device.
        in_use_bytes: What the allocator has allocated.
        peak_in_use_bytes: The most that it had allocated at one time.
        largest_free_bytes: The largest contiguous free block.
        live: Live arrays that are not arguments of the call, most bytes first.
        deleted: The pytree paths of the donated arguments, which have been deleted.
    """

    __module__ = "hbmwatch"

    device_kind: str
    device_count: int
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    peak_in_use_bytes: int | None = None
    largest_free_bytes: int | None = None
    live: tuple[LiveArrays, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A remedy that figures of the failing program support.

    Attributes:
        slug: A stable name for the kind ("donation").
        title: One line.
        evidence: The figures.
        remedy: What to change, in one sentence.
        saves_bytes: Bytes of its buffers that the remedy frees at most; None if unknown.
        certainty: "measured" (a changed program was compiled), "derived" (arithmetic on this
            program) or "hint".
        link: Where to read on.
        will_not_help: What people often try here without effect; "" if there is nothing.
        change: The change with which `verify` can try the remedy; "" if it can only be tried with
            `variant`, a step that you changed.
        buffers: The HLO instructions of the buffers at the peak that it frees, in part or in full,
            as PeakOp.instruction; empty if unknown.
    """

    __module__ = "hbmwatch"

    slug: str
    title: str
    evidence: str
    remedy: str
    saves_bytes: int | None
    certainty: Certainty
    link: str
    will_not_help: str = ""
    change: str = ""
    buffers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Finding {self.slug}: {clean(self.title, 200)}>"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A host array that did not fit on a device when JAX copied it there: no program failed.

    Attributes:
        call: The function of JAX that was called ("device_put").
        shape: The array's element type and dimensions ("f32[1048576,1048576]").
        size_bytes: The size of the whole array.
        source: The line of your code ("train.py:12"); "" if unknown.
    """

    __module__ = "hbmwatch"

    call: str
    shape: str
    size_bytes: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Why a program ran out of device memory: the message, the peak, the device, the remedies.

    The mappings do not count for the hash.

    Attributes:
        message: What the error's text says.
        summary: The failing program's memory peak; None if it is unavailable (see missing).
        device: The device's memory; None if it does not matter or is unknown.
        breakdown: Bytes by type: "arguments", "outputs", "aliased", "temporaries", "constants",
            "code", "reserved", "fragmentation", "total", "limit"; a name that is absent is unknown.
        rollup: Bytes at the peak, by "role" and by "path" (of the pytree), each a mapping from
            name to bytes, at most a dozen, most bytes first.
        findings: Remedies, ranked.
        verdict: What all findings free together at most, and whether it is enough; "" if no limit
            is known or nothing failed.
        plan: What a plan found, with `watch_hbm(..., prove=...)`; "" if none was asked for.
        notes: Background that frees no memory by itself.
        missing: A sentence for each thing that is unavailable, and why.
        logdir: The folder for `xprof --logdir`, or its address; None if no profile was kept.
        run: The folder of the run under it, with the profile and this report as report.json,
            report.txt and report.html; its address if the run was copied to a remote store; None
            if nothing was written.
        local_run: The folder of the run on the host that failed, if `run` is an address.
        function: The name of the function that failed.
        program_is_guess: True if it is not certain that the program of `summary` ran out; the first
            note says why. Then breakdown, rollup and findings are a guess as well.
        transfer: The host array that could not be copied to a device; None if a program failed.
        process_index: jax.process_index() of the process that failed.
        process: The process that failed; None in a report of an older version, or of a log.
        versions: Package name -> version.
    """

    message: OomMessage
    summary: PeakSummary | None = None
    device: DeviceMemory | None = None
    breakdown: Mapping[str, int] = field(default_factory=dict, hash=False)
    rollup: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    findings: tuple[Finding, ...] = ()
    verdict: str = ""
    plan: str = ""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    logdir: str | None = None
    run: str | None = None
    local_run: str | None = None
    function: str = ""
    process_index: int = 0
    process: Process | None = None
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    program_is_guess: bool = False
    transfer: Transfer | None = None


def limit_of(report: ReportData) -> int | None:
    """The memory that a program can have: as the error says, else the device; None if unknown."""
    device = report.device.limit_bytes if report.device is not None else None
    return report.message.limit_bytes or report.breakdown.get("limit") or device
