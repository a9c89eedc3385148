"""Groups of memory spaces, by the names that XLA's messages use."""

from __future__ import annotations

ON_CHIP = frozenset(("vmem", "smem", "cmem", "sflag", "spmem", "tilespmem"))
"""The memory spaces of a TPU chip that a kernel uses while it runs; the rest is HBM or the host."""
