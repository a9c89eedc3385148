"""All rows of the tables of wordings; where two of them overlap in a text, the first one counts."""

from __future__ import annotations

from hbmwatch._messages import gpu, shared, tpu
from hbmwatch._messages.wording import Wording

WORDINGS: tuple[Wording, ...] = (*tpu.WORDINGS, *gpu.WORDINGS, *shared.WORDINGS)

HINTS = (
    "emory",
    "MEMORY",
    "lloc",
    "ALLOC",
    "hbm",
    "Hbm",
    "usage",
    "requirement",
    "OOM",
    "Oom",
    "BufferAssignment",
    "handle:",
    "cuFFT",
    "HBM",
    "capacity",
    "XLA",
    "Error loading",
)
"""Each message has one of these words, so that a long log need not be read whole."""
