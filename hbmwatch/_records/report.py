"""What a report holds: the message, the peak, the device, the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary

Certainty = Literal["measured", "derived", "hint"]


@dataclass(frozen=True, slots=True)
class LiveArrays:
    """Live arrays of one shape and dtype that the failed call did not pass in.

    Attributes:
        shape: The global shape.
        dtype: The dtype's name ("float32").
        count: How many there are.
        size_bytes: Bytes of all of them on one device, the fullest.
    """

    __module__ = "hbmwatch"

    shape: tuple[int, ...]
    dtype: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What else was on the device when the program failed at run time.

    Attributes:
        device_kind: The device ("TPU v5 lite", "NVIDIA H100 80GB HBM3").
        device_count: On how many devices the program runs.
        limit_bytes: What the allocator may use on one device.
        in_use_bytes: What it has handed out.
        peak_in_use_bytes: The most that it ever had.
        largest_free_bytes: The largest contiguous block that is free.
        live: Live arrays that the call did not pass in, most bytes first.
        deleted: The pytree paths of the donated arguments that are gone now.
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
    """A remedy that figures of the failing program back.

    Attributes:
        slug: A stable name for the kind ("donation").
        title: One line.
        evidence: The figures.
        remedy: What to change, in one sentence.
        saves_bytes: Bytes at the peak that the remedy frees, at most; None where not known.
        certainty: "measured" (a changed program was compiled), "derived" (arithmetic on this
            program) or "hint".
        link: Where to read on.
        will_not_help: What people usually try here without effect; "" where there is nothing.
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


@dataclass(frozen=True, slots=True)
class ReportData:
    """Why a program ran out of device memory: the message, the peak, the device, the remedies.

    Attributes:
        message: What the error's text says.
        summary: The failing program's memory peak; None where it could not be had (see missing).
        device: What else was on the device; None where that does not matter or is not known.
        breakdown: What the memory was, in bytes: "arguments", "outputs", "aliased",
            "temporaries", "constants", "code", "reserved", "fragmentation", "total", "limit"; a
            name that is absent is not known.
        rollup: Bytes at the peak, by "role" and by "path" (of the pytree), each a mapping from
            name to bytes, at most a dozen, most bytes first.
        findings: Remedies, ranked.
        notes: What the reader should know and that frees nothing by itself.
        missing: A sentence for each thing that could not be had, and why.
        logdir: The folder for `xprof --logdir`; None where no profile was kept.
        function: The name of the function that failed.
        process_index: jax.process_index() of the process that failed.
        versions: Package name -> version.
    """

    message: OomMessage
    summary: PeakSummary | None = None
    device: DeviceMemory | None = None
    breakdown: Mapping[str, int] = field(default_factory=dict)
    rollup: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    logdir: str | None = None
    function: str = ""
    process_index: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
