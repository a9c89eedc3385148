"""The figures and names in the text of an out-of-memory error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hbmwatch._records.peak_op import PeakOp

Platform = Literal["tpu", "gpu", "cpu"]
Phase = Literal["compile", "run"]


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures and names in the text of an out-of-memory error; None if the text has none.

    Two messages are equal if all fields are; the mappings do not count for the hash.

    Attributes:
        text: The text that was read.
        platform: "tpu", "gpu", "cpu", or None if several platforms use the wording.
        phase: "compile", "run", or None.
        code: XLA's error code ("E1000").
        memory_space: "hbm", "vmem", "smem", "cmem", "sflag", "host", ...
        pool: Which memory ran out: "allocator" (the memory that JAX's allocator manages),
            "reservation" (device memory that JAX's allocator wanted to reserve for its pool),
            "driver" (other device memory: modules, CUDA graphs, NCCL, library handles), "host", or
            None.
        requested_bytes: The one allocation that failed.
        used_bytes: What the whole program needs.
        limit_bytes: What the device, or the memory space, has.
        free_bytes: What was free.
        largest_free_bytes: The largest contiguous free region.
        exceeded_by_bytes: How much more than the limit the program needs, if the text says it.
        module: The HLO module ("jit_train_step").
        allocator: The allocator's name ("GPU_0_bfc").
        device: The device, in the text's words ("0", "0x0x1_HBM0").
        replica: The replica that failed.
        partition: The partition that failed.
        totals: The named totals, in the text's words: "reserved", "program", "arguments",
            "HLO temp", "parameter allocation", ...
        fragmentation_bytes: Bytes lost to fragmentation.
        ops: The allocations that the text lists, largest first.
        resolution_bytes: For each figure that the text rounds, by field or total, the size in
            bytes of its last printed digit; other figures are exact.
    """

    __module__ = "hbmwatch"

    text: str
    platform: Platform | None = None
    phase: Phase | None = None
    code: str | None = None
    memory_space: str | None = None
    pool: Literal["allocator", "reservation", "driver", "host"] | None = None
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
    totals: Mapping[str, int] = field(default_factory=dict, hash=False)
    fragmentation_bytes: int | None = None
    ops: tuple[PeakOp, ...] = ()
    resolution_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.text
