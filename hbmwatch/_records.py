"""The nouns: what an out-of-memory message, a memory peak and a report of both hold.

Sizes are ints in bytes. A number that is None is not known, which is not 0; a text that is ""
was not given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hbmwatch import _render, _stored

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NUMBER = re.compile(r"\d+")

Platform = Literal["tpu", "gpu", "cpu"]
Phase = Literal["compile", "run"]
Certainty = Literal["measured", "derived", "hint"]
Kind = Literal["parameter", "output", "temporary", "constant", "thread-local", ""]


class ProfileError(Exception):
    """A profile that cannot be read: what is wrong, where, and which modules are there.

    Attributes:
        path: The file or folder.
        modules: The modules that were found there, as "jit_step(12)".
    """

    def __init__(self, text: str, path: str = "", modules: tuple[str, ...] = ()) -> None:
        super().__init__(text, path, modules)
        self.path = path
        self.modules = modules

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class PeakOp:
    """A buffer that is live at the memory peak, and the HLO instruction that defines it.

    Attributes:
        instruction: The HLO instruction, with its tuple index where it has one ("copy-start{0}");
            "" for the row that stands for all buffers below 16 KiB.
        opcode: The HLO opcode ("fusion", "parameter").
        op_name: JAX's name of the operation ("jit(step)/jvp()/dot_general"); of a parameter, the
            path of the argument.
        shape: The shape as XLA prints it ("f32[8192,8192]{1,0}").
        size_bytes: Bytes on the device, padding included.
        unpadded_bytes: Bytes that the elements alone take.
        kind: "parameter", "output", "temporary", "constant" or "thread-local".
        memory_space: "hbm", "vmem", "smem", "cmem", "sflag", "host", ...
        source: The first frame in the user's code, as "train.py:88".
        stack: All frames, innermost first, as "/path/to/file.py:line".
        start: The program point at which the buffer comes to life; None: from the first on.
        end: The program point at which it is freed; None: it lives through the whole program.
        role: What it is for, in the words of OomReport.rollup ("optimizer state", "residuals saved
            for backward"); "" where nobody asked. It does not count for equality.
    """

    instruction: str
    opcode: str = ""
    op_name: str = ""
    shape: str = ""
    size_bytes: int = 0
    unpadded_bytes: int = 0
    kind: Kind = ""
    memory_space: str = "hbm"
    source: str = ""
    stack: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    role: str = field(default="", compare=False)

    @property
    def padding_bytes(self) -> int:
        """Bytes that the layout adds to the elements."""
        return self.size_bytes - self.unpadded_bytes

    @property
    def expansion(self) -> float:
        """Size over unpadded size; 1.0 for an empty buffer."""
        return self.size_bytes / self.unpadded_bytes if self.unpadded_bytes else 1.0

    @property
    def path(self) -> str | None:
        """The pytree path of the argument ("state.params['w']"); None unless it is a parameter."""
        return self.op_name or None if self.kind == "parameter" else None


@dataclass(frozen=True, slots=True)
class OomMessage:
    """What the text of an out-of-memory error says, and nothing that it does not say.

    Attributes:
        text: The text that was read.
        platform: "tpu", "gpu", "cpu", or None where the wording is shared.
        phase: "compile", "run", or None.
        code: XLA's error code ("E1000").
        memory_space: "hbm", "vmem", "smem", "cmem", "sflag", "host", ...
        pool: Whose memory ran out: "allocator" (the memory that JAX's allocator manages), "driver"
            (device memory outside of it: modules, CUDA graphs, NCCL, library handles), "host", or
            None.
        requested_bytes: The one allocation that failed.
        used_bytes: What the whole program needs.
        limit_bytes: What the device, or the memory space, offers.
        free_bytes: What was free.
        largest_free_bytes: The largest contiguous region that was free.
        exceeded_by_bytes: By how much the limit was exceeded, where the text says it.
        module: The HLO module ("jit_train_step").
        allocator: The allocator's name ("GPU_0_bfc").
        device: The device as the text names it ("0", "0x0x1_HBM0").
        replica: The replica that failed.
        partition: The partition that failed.
        totals: The named totals, as the text names them: "reserved", "program", "arguments",
            "HLO temp", "parameter allocation", ...
        fragmentation_bytes: Bytes lost to fragmentation.
        ops: The allocations that the text lists, largest first.
        resolution_bytes: For each figure that the text rounds, by field or total, the size in
            bytes of its last printed digit; a figure that is not in here is exact.
    """

    text: str
    platform: Platform | None = None
    phase: Phase | None = None
    code: str | None = None
    memory_space: str | None = None
    pool: Literal["allocator", "driver", "host"] | None = None
    requested_bytes: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    exceeded_by_bytes: int | None = None
    module: str | None = None
    allocator: str | None = None
    device: str | None = None
    replica: int | None = None
    partition: int | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    fragmentation_bytes: int | None = None
    ops: tuple[PeakOp, ...] = ()
    resolution_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PeakSummary:
    """XProf's "HLO Ops at Peak Memory Allocation" of one HLO module, in one memory space.

    The figures equal those of XProf's Memory Viewer to the byte
    (https://openxla.org/xprof/memory_viewer). All are per device.

    Attributes:
        module: The HLO module ("jit_train_step").
        program_id: The number in the profile's "jit_train_step(12)".
        memory_space: "hbm", "vmem", "sflag", "cmem", "smem" or "host".
        peak_bytes: Bytes live at the peak.
        peak_unpadded_bytes: The same without padding, as XProf counts it.
        peak_position: The program point of the peak, an index into heap_bytes; None where the
            profile has no trace of this memory space.
        heap_bytes: Bytes live at each program point, int64 of shape (points,), read-only.
        parameter_bytes: Arguments.
        output_bytes: Outputs that no argument's memory is reused for.
        aliased_bytes: Arguments whose memory an output reuses (donated ones).
        temporary_bytes: The compiler's temporary allocations, fragmentation included.
        total_allocation_bytes: The compiler's own figure, the sum of all allocations.
        fragmentation_bytes: total_allocation_bytes - peak_bytes.
        ops: The buffers live at the peak, in program order; their sizes sum to peak_bytes. All
            buffers below 16 KiB are one last row, whose instruction is "".
        top: How many rows the text shows.
    """

    module: str
    program_id: int | None
    memory_space: str
    peak_bytes: int
    peak_unpadded_bytes: int
    peak_position: int | None
    heap_bytes: npt.NDArray[np.int64]
    parameter_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    total_allocation_bytes: int
    fragmentation_bytes: int
    ops: tuple[PeakOp, ...]
    top: int = field(default=10, repr=False)

    def by_program_order(self) -> tuple[PeakOp, ...]:
        """The buffers in the order in which the program allocates them."""
        return self.ops

    def by_size(self) -> tuple[PeakOp, ...]:
        """The buffers, largest first; equal ones in program order."""
        return tuple(sorted(self.ops, key=lambda op: -op.size_bytes))

    def by_padding(self) -> tuple[PeakOp, ...]:
        """The buffers, most padding bytes first; equal ones in program order."""
        return tuple(sorted(self.ops, key=lambda op: -op.padding_bytes))

    def longest_lived(self) -> tuple[PeakOp, ...]:
        """The buffers, longest lifetime in program points first; larger ones first among equals."""
        points = len(self.heap_bytes)

        def lifetime(op: PeakOp) -> int:
            end = points if op.end is None else op.end
            return end - (op.start or 0)

        return tuple(sorted(self.ops, key=lambda op: (-lifetime(op), -op.size_bytes)))

    def grouped(self) -> tuple[tuple[int, PeakOp], ...]:
        """Equal buffers folded, as (count, the first of them), most bytes first.

        Buffers are equal when size, shape, kind, source and, but for its numbers, op_name are:
        "p[0]" and "p[7]" are equal, as arguments of one size and shape.
        """
        groups: dict[tuple[object, ...], list[PeakOp]] = {}
        for op in self.ops:
            name = _NUMBER.sub("*", op.op_name)
            key = (op.size_bytes, op.shape, op.kind, name, op.source, bool(op.instruction))
            groups.setdefault(key, []).append(op)
        folded = [(len(ops), ops[0]) for ops in groups.values()]
        return tuple(sorted(folded, key=lambda row: -row[0] * row[1].size_bytes))

    def __str__(self) -> str:
        return _render.summary_text(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PeakSummary):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((self.module, self.program_id, self.memory_space, self.peak_bytes))


def _values(summary: PeakSummary) -> list[Any]:
    """The fields that count for equality, the array as a list."""
    named = ((f.name, getattr(summary, f.name)) for f in fields(PeakSummary) if f.name != "top")
    return [value.tolist() if name == "heap_bytes" else value for name, value in named]


@dataclass(frozen=True, slots=True)
class LiveArrays:
    """Live arrays of one shape and dtype that the failed call did not pass in.

    Attributes:
        shape: The global shape.
        dtype: The dtype's name ("float32").
        count: How many there are.
        size_bytes: Bytes of all of them on one device, the fullest.
    """

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

    slug: str
    title: str
    evidence: str
    remedy: str
    saves_bytes: int | None
    certainty: Certainty
    link: str
    will_not_help: str = ""


@dataclass(frozen=True, slots=True)
class OomReport:
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
        top: How many rows the text shows.
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
    top: int = 10

    def __str__(self) -> str:
        return _render.report_text(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values, under a "schema" version."""
        return _render.report_dict(self)

    def scalars(self) -> dict[str, int | float]:
        """The report as flat name -> number, for a metrics logger."""
        return _render.report_scalars(self)

    def to_html(self) -> str:
        """The report as one HTML document that needs nothing else, with chart and table."""
        from hbmwatch import _html  # a third of what reading one message would load

        return _html.page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write to_html() into a file.

        Raises:
            OSError: It cannot be written.
        """
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from hbmwatch import _html

        return _html.notebook(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OomReport:
        """The report that to_dict() gave, also after a round trip through JSON.

        Raises:
            ValueError: Another schema version, or values that are no report.
        """
        return _stored.rebuild_report(cls, values, _RECORDS)

    def fingerprint(self) -> str:
        """16 hex digits that group reports of one failure, whatever the sizes (for Sentry)."""
        return _stored.fingerprint(self)


_RECORDS = (DeviceMemory, Finding, LiveArrays, OomMessage, PeakOp, PeakSummary)
