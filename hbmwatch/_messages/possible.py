"""Errors that do not say that device memory ran out, and mean it, or that host memory ran out."""

from __future__ import annotations

import re
from typing import NamedTuple

_RAN_OUT = (
    "memory ran out, not device memory, unless the CPU is the device: {cause}. Free or avoid "
    "copies on the host, or use a machine or a container with more memory."
)
_HOST, _PROBABLY_HOST = f"Host {_RAN_OUT}", f"Probably host {_RAN_OUT}"


class _HostError(NamedTuple):
    """An error of the host's memory, as a traceback or an abort prints it.

    Attributes:
        pattern: Its text.
        again: What the first words of a later error are if it is the same one.
        note: What is said of it.
    """

    pattern: re.Pattern[str]
    again: re.Pattern[str]
    note: str


# pycuda and pyopencl have a MemoryError of their own, for device memory.
_MEMORY_ERROR = r"(?:builtins\.|numpy\.[\w.]{1,60}\.)?(?:_Array)?MemoryError"
_SAME = re.compile(rf"{_MEMORY_ERROR}(?![\w.])")
# RMM, Thrust and others derive errors of device memory from std::bad_alloc, and add the reason.
_ONLY_BAD_ALLOC = r"std::bad_alloc[ \t]*$"
_HOST_ERRORS = (
    _HostError(
        re.compile(
            r"instance of 'std::bad_alloc'(?!\s{1,40}what\(\):[ \t]{0,8}std::bad_alloc:)"
            r"|(?:instance of '(?!std::bad_alloc')(?P<other>[^'\n]{1,200})'\s{1,40})?"
            rf"what\(\):[ \t]{{0,8}}{_ONLY_BAD_ALLOC}"
            rf"|uncaught exception of type std::bad_alloc: {_ONLY_BAD_ALLOC}"
            rf"|(?<![\w.])(?:{_MEMORY_ERROR}|INTERNAL): {_ONLY_BAD_ALLOC}",
            re.MULTILINE,
        ),
        _SAME,
        _PROBABLY_HOST.format(cause="the C++ library got none (std::bad_alloc)"),
    ),
    _HostError(
        re.compile(r"MemoryError: Unable to allocate [\d.]{1,20} \w{1,5} for an array with shape"),
        _SAME,
        _PROBABLY_HOST.format(cause="NumPy got none for an array"),
    ),
    _HostError(
        re.compile(
            rf"^[ \t]*+(?:E[ \t]+)?{_MEMORY_ERROR}(?::(?! std::bad_alloc)|[ \t]*$)",
            re.MULTILINE,
        ),
        _SAME,
        _PROBABLY_HOST.format(cause="Python got none (MemoryError)"),
    ),
    _HostError(
        re.compile(r": \[Errno 12\] Cannot allocate memory"),
        re.compile(r"[\w.]{1,100}: \[Errno 12\]"),
        "The operating system refused memory of the host. Probably host memory ran out, or the "
        "process reached a limit; this is not device memory.",
    ),
)
# The last line of a traceback, or the first one of an abort. A launcher reports that a process
# ended, whatever the reason was.
_RAISED = re.compile(
    r"^[ \t]*+(?:E[ \t]+)?(?P<error>"
    r"(?!(?:\w{1,60}\.){0,8}(?:CalledProcessError|ChildFailedError)\b)"
    r"[\w.]{0,200}(?:Error|Exception|Interrupt)(?::|[ \t]*$)[^\n]*"
    r"|terminate called after throwing an instance of '(?!std::bad_alloc')[^\n]*)",
    re.MULTILINE,
)
_DEVICE = re.compile(
    r"cuda|cumem|mem_object|rocm|opencl|\bhip|\b(?:device|gpu|tpu|hbm|vram)", re.IGNORECASE
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
    of_host = next((error.note for error in _HOST_ERRORS if _ends_with(text, error)), "")
    return of_host or next((note for pattern, note in _ROWS if pattern.search(text)), "")


def _ends_with(text: str, error: _HostError) -> bool:
    """Whether it is the last error of a text. An earlier one may have been handled."""
    last = next(reversed(list(error.pattern.finditer(text))), None)
    if last is None or last.groupdict().get("other"):
        return False
    begin, end = text.rfind("\n", 0, last.start()) + 1, text.find("\n", last.end())
    end = len(text) if end < 0 else end
    if _DEVICE.search(text, begin, end):
        return False
    later = (raised["error"] for raised in _RAISED.finditer(text, end))
    return all(error.again.match(words) and not _DEVICE.search(words) for words in later)
