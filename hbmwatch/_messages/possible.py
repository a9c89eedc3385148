"""Errors that do not say that device memory ran out, and mean it, or that host memory ran out."""

from __future__ import annotations

import re

_HOST = (
    "Host memory ran out, not device memory, unless the CPU is the device: {cause}. Free or avoid "
    "copies on the host, or use a machine or a container with more memory."
)

# The first row that matches counts.
_ROWS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        # What XLA's CPU backend says of each failure of the library.
        re.compile("YNNPACK operation failed"),
        "XLA gives no reason for this failure of YNNPACK, the library that computes matrix "
        "products on the CPU. Memory possibly ran out: YNNPACK fails like this when its buffers "
        "do not fit in host memory.",
    ),
    (
        re.compile("JIT session error: Cannot allocate memory"),
        "The operating system refused memory for code that LLVM compiled for the CPU. Probably "
        "host memory ran out, or the process reached its limit of mappings (on Linux "
        "/proc/sys/vm/max_map_count).",
    ),
    (
        # RMM throws a class of this name for device memory.
        re.compile(r"std::bad_alloc(?!: ?(?:out_of_memory|CUDA|HIP))"),
        _HOST.format(cause="the C++ library got none (std::bad_alloc)"),
    ),
    (
        re.compile(
            r"^[ \t]*(?:[\w.]{1,100}\.)?MemoryError(?::(?! std::bad_alloc)|[ \t]*$)", re.MULTILINE
        ),
        _HOST.format(cause="Python got none (MemoryError)"),
    ),
    (
        re.compile(r"Unable to allocate [\d.]{1,20} \w{1,5} for an array with shape"),
        _HOST.format(cause="NumPy got none for an array"),
    ),
    (
        re.compile(r"\[Errno 12\] Cannot allocate memory"),
        "The operating system refused memory of the host. Probably host memory ran out, or the "
        "process reached a limit; this is not device memory.",
    ),
    (
        re.compile(
            r"operation gpu\w{1,40}Create\([^()]{0,100}\) failed: (?:cuSolver|cuBLAS|cuSPARSE|"
            r"hipSOLVER|hipBLAS|rocBLAS)? ?internal error",
            re.IGNORECASE,
        ),
        "A library of the GPU could not start, and gives no reason. Possibly the device memory "
        "outside of JAX's array pool ran out: then a lower XLA_CLIENT_MEM_FRACTION helps. A "
        "library that does not match the driver fails like this too.",
    ),
)


def possible_oom(text: str) -> str:
    """A note on an error that may be an OOM although it does not say so; "" for any other."""
    return next((note for pattern, note in _ROWS if pattern.search(text)), "")
