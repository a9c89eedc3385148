"""Reads files that somebody else may be deleting, and that need not be files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from hbmwatch._profiles.store import Entry, Location, RemotePath
from hbmwatch._records.profile_error import ProfileError

_LARGEST_BYTES = 2**31 - 1  # no proto can be larger; a sparse file of any size takes no disk


def read_file(path: Location) -> bytes:
    """The content of a regular file.

    A FIFO would wait for a writer, and a device has no end.

    Raises:
        ProfileError: It cannot be read, is no regular file, or is larger than any proto; its cause
            is the OSError, if any.
    """
    if isinstance(path, RemotePath):
        return path.read_bytes()
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ProfileError(f"cannot read {path}: it is not a regular file", str(path))
            if status.st_size > _LARGEST_BYTES:
                raise ProfileError(f"cannot read {path}: it is larger than 2 GiB", str(path))
            if file.peek(1)[:1] == b"\0":  # as of a sparse file, which may be large
                problem = "it begins with a zero byte, as no profile and no report does"
                raise ProfileError(f"cannot read {path}: {problem}", str(path))
            return file.read()
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", str(path)) from error
    except MemoryError as error:
        raise ProfileError(f"cannot read {path}: it is too large", str(path)) from error


def entries(folder: Location) -> Iterator[os.DirEntry[str] | Entry]:
    """What is in a folder; nothing if it is gone or cannot be read."""
    if isinstance(folder, RemotePath):
        yield from folder.entries()
        return
    with contextlib.suppress(OSError), os.scandir(folder) as scan:
        while True:
            try:
                entry = next(scan)
            except StopIteration:
                return
            yield entry


def listing_problem(folder: Location) -> str | None:
    """Why a local folder cannot be listed, which `entries` does not say; None if it can."""
    try:
        if not isinstance(folder, RemotePath):
            os.scandir(folder).close()
    except OSError as error:
        return error.strerror
    return None


def files_with(folder: Location, suffix: str) -> list[Location]:
    """What is in a folder under a name with this suffix, by name."""
    names = sorted(entry.name for entry in entries(folder) if entry.name.endswith(suffix))
    return [folder / name for name in names]
