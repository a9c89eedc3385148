"""The on-chip memory spaces that XLA's messages name."""

from __future__ import annotations

# A Pallas kernel's blocks and scratch shapes are in these; the last two are SparseCore's.
KERNEL_MEMORY = ("vmem", "smem", "spmem", "tilespmem")
# Freeing HBM frees nothing in any of these.
ON_CHIP = (*KERNEL_MEMORY, "cmem", "sflag")
# XLA's code of an error about SparseCore's memory, which has several spaces.
SPARSE_CORE_CODE = "E3000"
