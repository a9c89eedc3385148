"""How XLA:GPU, the CPU client and their allocators say that memory ran out.

The allocator's pool and the memory outside of it have opposite remedies, so each row says which of
them ran out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hbmwatch._records import OomMessage, PeakOp
from hbmwatch._sizes import SIZE, read_size
from hbmwatch._wording import Wording, add_size, add_total, optional

_POOL = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="allocator")
_DRIVER = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="driver")
_HOST = OomMessage("", platform="gpu", phase="run", memory_space="host", pool="host")
_CPU = OomMessage("", platform="cpu", phase="run", pool="host")

WORDINGS = (
    Wording(
        "gpu-host",
        _HOST,
        "Out of host memory while trying to allocate",
        optional(" <requested_bytes>", r"\.? with allocator <allocator>"),
    ),
    Wording(
        "gpu-pool",
        _POOL,
        "Out of memory while trying to allocate",
        optional(
            " <requested_bytes>", " with allocator <allocator>", " on device <device>(?!\\w)"
        ),
    ),
    Wording(
        "gpu-block",
        _POOL,
        "BufferAssignment OOM Debugging",
        role="part",
    ),
    Wording(
        "cpu",
        _CPU,
        "Out of memory allocating ",
        "<requested_bytes>",
    ),
    Wording(
        "gpu-driver",
        _DRIVER,
        "CUDA_ERROR_OUT_OF_MEMORY",
        role="part",
    ),
    Wording(
        "status",
        OomMessage(""),
        "RESOURCE_EXHAUSTED: Out of memory",
        role="part",
    ),
)

_TOTAL = re.compile(
    r"((?:parameter|constant|maybe_live_out|preallocated temp|total)"
    rf" (?:allocation|fragmentation)): +({SIZE})"
)
_ENTRY = re.compile(rf"Buffer \d{{1,4}}: Size: ({SIZE})")
_FIELD = re.compile(r"(Operator|XLA Label|Shape|Entry Parameter Subshape): ")
_ATTRIBUTE = re.compile(r'(op_name|source_file)="([^"]*)"|source_line=(\d{1,9})')


def add_details(fields: dict[str, Any], text: str) -> None:
    """Adds what a flat XLA:GPU message says after its first sentence."""
    block = text.find("BufferAssignment ")
    if block < 0:
        return
    for name, size in _TOTAL.findall(text, block):
        add_total(fields, name, size)
        if name == "total allocation":
            add_size(fields, "used_bytes", size)
        if name.endswith("fragmentation"):
            add_size(fields, "fragmentation_bytes", size)
    fields["ops"] = tuple(sorted(_listed(text[block:]), key=lambda op: -op.size_bytes))


def _listed(text: str) -> Iterator[PeakOp]:
    """The peak buffers: "Buffer 1: Size: 6.00MiB Operator: ... XLA Label: fusion Shape: ..."."""
    starts = list(_ENTRY.finditer(text))
    for start, end in zip(starts, [m.start() for m in starts[1:]] + [len(text)]):
        parts = _FIELD.split(text[start.end() : end].partition(" =====")[0])[1:]
        entry = {name: value.strip() for name, value in zip(parts[::2], parts[1::2])}
        size = read_size(start[1])
        if size:
            yield _op(entry, size.size_bytes)


def _op(entry: dict[str, str], size_bytes: int) -> PeakOp:
    attributes = _ATTRIBUTE.finditer(entry.get("Operator", ""))
    operator = {match[1] or "line": match[2] or match[3] for match in attributes}
    path, line = operator.get("source_file") or "", operator.get("line")
    frame = f"{path}:{line}" if path and line else path
    subshape = entry.get("Entry Parameter Subshape")
    label = "parameter" if subshape is not None else entry.get("XLA Label", "")
    return PeakOp(
        instruction=label,
        opcode=label,
        op_name=operator.get("op_name") or "",
        shape=subshape or entry.get("Shape", ""),
        size_bytes=size_bytes,
        unpadded_bytes=size_bytes,
        kind="parameter" if subshape is not None else "",
        source=frame.rpartition("/")[2],
        stack=(frame,) if frame else (),
    )
