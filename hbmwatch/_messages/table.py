"""All rows of the tables of wordings; where two of them overlap in a text, the first one counts."""

from __future__ import annotations

from hbmwatch._messages import gpu, own_reports, shared, tpu
from hbmwatch._messages.wording import Wording

WORDINGS: tuple[Wording, ...] = (
    *tpu.WORDINGS,
    *gpu.WORDINGS,
    *shared.WORDINGS,
    *own_reports.WORDINGS,
)

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
    "OUT_OF_RESOURCES",
    "hbmwatch: ",
)
"""Each message has one of these words, so that a long log need not be read whole."""

TRIGGERS = (
    b"RESOURCE_EXHAUSTED",
    b"ut of memory",
    b"OUT_OF_MEMORY",
    b"OutOfMemory",
    b"_ALLOC",
    b"Allocation",
    b"CompileTime",
    b"Attempting to ",
    b"ailed to alloc",
    b"ailed to create ",
    b"ailed to make cuFFT ",
    b"ould not allocate ",
    b"ould not create ",
    b"Not enough ",
    b"ailed to CUDA ",
    b"OUT_OF_RESOURCES",
    b"OOM when allocating tensor",
    b"OOM in pinned host ",
    b"Core Hbm usage: ",
    b"lack of HBM space",
    b"unlikely to have ",
    b"customized allocator: Allocating ",
    b"op current allocation offset ",
    b"Sum Total of in-use chunks",
    b"InUse: ",
    b"hbmwatch: ",
)
"""Each error has one of these on one line: what a log of gigabytes is searched for.

Few, long and rare texts: each takes time, a short one takes several times as long, and what is near
one that is found is read. The later lines of an error do not need one.
"""
