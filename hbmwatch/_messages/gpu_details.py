"""What an XLA:GPU message says after its first sentence: whose memory it is, and the totals."""

from __future__ import annotations

import re
from typing import Any

from hbmwatch._messages.allocations import add_ops, gpu_allocations
from hbmwatch._messages.figures import add_total, refine
from hbmwatch._messages.gpu import STATISTICS
from hbmwatch._records.sizes import SIZE, read_size

_TOTAL = (
    r"((?:parameter|constant|maybe_live_out|preallocated temp|total)"
    rf" (?:allocation|fragmentation)): +({SIZE})"
)
# The statistics of an allocator that keeps neither its limit nor its largest free block.
_NO_LIMIT = "Stats: Limit: 0 "
# The totals end at most this many characters after the heading.
_TOTALS_REACH = 2000


def add_gpu_details(fields: dict[str, Any], text: str) -> None:
    """Add to an OomMessage's fields what the rest of a flat XLA:GPU message says."""
    allocator = fields.get("allocator", "").lower()
    if "host" in allocator:
        fields["memory_space"] = fields["pool"] = "host"
    if allocator.endswith("cpu"):  # TensorFlow's "cpu" and "mklcpu"
        fields |= {"platform": "cpu", "memory_space": None, "pool": "host"}
    if _NO_LIMIT in text:
        for name in ("limit_bytes", "largest_free_bytes"):
            if fields.get(name) == 0:
                del fields[name]
    start = text.find(STATISTICS)
    if start < 0:
        add_ops(fields, gpu_allocations(text))
        return
    for name, size in re.findall(_TOTAL, text[start:][:_TOTALS_REACH]):
        add_total(fields, name, size)
        if name == "total allocation":
            refine(fields, "used_bytes", read_size(size))
        if name == "total fragmentation":
            refine(fields, "fragmentation_bytes", read_size(size))
    add_ops(fields, gpu_allocations(text[start:]))
