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
            r"Detected \d{1,9} oom[_-]kill event|killed by the cgroup out-of-memory handler"
            r"|(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d"
        ),
        _HOST.format(cause="the operating system killed a process for it"),
    ),
    (
        # Docker and Kubernetes write the word where nothing was killed, too.
        re.compile(
            r"\breason\"?[:=]\s{0,20}\"?OOMKilled\b|\bOOMKilled\"?[:=]\s{0,20}true\b"
            r"|\d/\d{1,4}\s{1,20}(?:Init:)?OOMKilled\b",
            re.IGNORECASE,
        ),
        _HOST.format(cause="the container was killed at its limit (OOMKilled)"),
    ),
    (
        re.compile(r"\b(?:Task|Actor) was killed due to the node running low on memory"),
        _HOST.format(cause="Ray killed a task or an actor for it"),
    ),
    (
        re.compile(r"\bexit(?:ed with)? code:?\s{1,20}137\b", re.IGNORECASE),
        "A process was killed (exit code 137 is SIGKILL). Possibly host memory ran out: the "
        "operating system kills processes for it. A time limit or a preemption ends them like "
        "this, too.",
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
