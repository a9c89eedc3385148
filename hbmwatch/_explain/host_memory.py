"""How much memory the host has left, by the kernel and by the limits of the container.

Mapping memory to find out would not show it: Linux accepts a map of more than it has, and counts
pages when they are touched.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

_ROOM_BYTES = 2**28  # several times what a large report takes
_LONGEST_FILE_BYTES = 2**14
_NO_LIMIT = 2**62  # version 1 of cgroups writes a number of about this size
# The files of a memory cgroup, limit and usage, by the version of cgroups.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_VERSION_2 = ("memory.max", "memory.current")


class _Cgroup(NamedTuple):
    """A memory cgroup: its folder, and the names of its files."""

    folder: str
    limit_file: str
    usage_file: str


def check_host_memory() -> None:
    """Raise MemoryError where the host has little memory left: XLA's code would abort there."""
    left = available_bytes()
    try:
        if left is not None and left < _ROOM_BYTES:
            raise OSError(f"{left} bytes are left")
        mmap.mmap(-1, _ROOM_BYTES).close()  # what RLIMIT_AS forbids; nothing is touched
    except OSError as error:
        raise MemoryError("not enough host memory to build the report") from error


def available_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int | None:
    """What a process can still use, at least where it is little; None where nothing says so.

    Args:
        proc: Where procfs is mounted.
        cgroups: Where the cgroups are mounted.
    """
    kibibytes = _field(f"{proc}/meminfo", "MemAvailable:")
    free = [
        None if kibibytes is None else kibibytes * 1024,
        *(_left(cgroup) for cgroup in _limited(proc, cgroups)),
    ]
    return min((size for size in free if size is not None), default=None)


@functools.cache
def _limited(proc: str, cgroups: str) -> tuple[_Cgroup, ...]:
    """The process's memory cgroup and those around it, as far as they have a limit.

    Found once: opening the files of each cgroup takes longer than the rest of the check.

    Inside a container the path of the process's cgroup may be the host's, and not there; the folder
    of all cgroups is then the container's own.
    """
    return tuple(cgroup for cgroup in _cgroups(proc, cgroups) if _limit_bytes(cgroup) is not None)


def _cgroups(proc: str, cgroups: str) -> Iterator[_Cgroup]:
    """The process's memory cgroup and those around it."""
    for line in _text(f"{proc}/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root = f"{cgroups}/memory" if controllers else cgroups
        folder = root + path.rstrip("/")
        while folder.startswith(root):
            yield _Cgroup(folder, *(_VERSION_1 if controllers else _VERSION_2))
            folder = folder.rpartition("/")[0]


def _limit_bytes(cgroup: _Cgroup) -> int | None:
    """The limit of a cgroup; None without one."""
    limit = _text(f"{cgroup.folder}/{cgroup.limit_file}").strip()
    return int(limit) if limit.isdigit() and int(limit) < _NO_LIMIT else None


def _left(cgroup: _Cgroup) -> int | None:
    """What a cgroup's limit leaves; None without a limit."""
    limit = _limit_bytes(cgroup)
    usage = _text(f"{cgroup.folder}/{cgroup.usage_file}").strip()
    if limit is None or not usage.isdigit():
        return None
    left = limit - int(usage)
    # The kernel takes milliseconds to sum up memory.stat.
    return left if left >= _ROOM_BYTES else left + _page_cache(cgroup.folder)


def _page_cache(folder: str) -> int:
    """The pages of files: counted as used, but the kernel drops them before it refuses memory."""
    stat = f"{folder}/memory.stat"
    return sum(
        _field(stat, f"total_{name}") or _field(stat, name) or 0
        for name in ("active_file", "inactive_file")
    )


def _field(file: str, name: str) -> int | None:
    """The number after a name, in a file of the kernel's that has a name on each line."""
    found = re.search(rf"^{name} *(\d+)", _text(file), re.MULTILINE)
    return int(found[1]) if found else None


def _text(file: str) -> str:
    """The text of a file; "" where it cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            return os.read(descriptor, _LONGEST_FILE_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""
