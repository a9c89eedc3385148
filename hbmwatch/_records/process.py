"""Which process of a job something happened in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """The process that failed, among those of its job.

    Attributes:
        index: jax.process_index(); without jax.distributed, the rank that the launcher gave.
        count: jax.process_count().
        host: The host's name.
        pid: The process id.
        time: When it failed, by the host's clock: UTC, in ISO 8601 ("2026-01-31T08:15:02.125Z").
        device_ids: jax.Device.id of its devices, unique in the job.
        local_device_ids: The same devices, as the host numbers them.
        coords: The devices' positions in the TPU's mesh; empty on other platforms.
        slice_index: The TPU slice, in a job of several; None elsewhere.
    """

    __module__ = "hbmwatch"

    index: int = 0
    count: int = 1
    host: str = ""
    pid: int = 0
    time: str = ""
    device_ids: tuple[int, ...] = ()
    local_device_ids: tuple[int, ...] = ()
    coords: tuple[tuple[int, ...], ...] = ()
    slice_index: int | None = None

    @property
    def label(self) -> str:
        """The process as people call it: "process 17 (host-4)"."""
        return f"process {self.index}" + (f" ({self.host})" if self.host else "")
