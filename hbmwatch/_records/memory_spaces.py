"""The memory spaces that XLA's messages name, and which of them lie on the chip."""

from __future__ import annotations

# A kernel uses these while it runs: freeing HBM frees nothing here. SparseCore's are the last two.
ON_CHIP = ("vmem", "smem", "cmem", "sflag", "spmem", "tilespmem")
