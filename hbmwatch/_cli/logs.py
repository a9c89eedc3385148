"""Reads logs for `explain`: compressed or not, in any encoding, in blocks."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

from hbmwatch._cli.command import CommandError
from hbmwatch._cli.console import print_on_stderr
from hbmwatch._records.addresses import remote_address
from hbmwatch._records.profile_error import ProfileError

_BLOCK = 1 << 18
# How the formats begin, and the modules that can read them; the first one that is installed does.
_FORMATS = {
    b"\x1f\x8b": ("gzip",),
    b"BZh": ("bz2",),
    b"\xfd7zXZ\x00": ("lzma",),
    b"\x28\xb5\x2f\xfd": ("compression.zstd", "zstandard"),
}
_LONGEST_MAGIC = max(map(len, _FORMATS))


@contextlib.contextmanager
def open_log(file: str) -> Iterator[Iterator[bytes]]:
    """The content of a log in blocks, decompressed and in UTF-8.

    Args:
        file: The file; "-" for stdin. A file that is cut off, as one that is still written, gives
            what there is, and a sentence on stderr says so.

    Raises:
        CommandError: The file cannot be read.
    """
    try:
        with _opened(file) as raw:
            yield _utf8(_blocks(_decompressed(raw, file), file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error


@contextlib.contextmanager
def _opened(file: str) -> Iterator[io.BufferedReader[Any]]:
    """A file, or stdin, to be read as bytes."""
    if file == "-":
        if sys.stdin is None:
            raise CommandError("cannot read stdin: it is closed")
        if sys.stdin.isatty():
            print_on_stderr("paste the error, then press Ctrl-D")
        yield io.BufferedReader(_Unclosed(sys.stdin.buffer), _BLOCK)
        return
    if remote_address(file) is not None:
        yield io.BufferedReader(_Unclosed(io.BytesIO(_remote(file))), _BLOCK)
        return
    with io.BufferedReader(io.FileIO(file), _BLOCK) as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not opened.isatty()):
            raise CommandError(f"cannot read {file}: it is a device")
        yield opened


def _remote(address: str) -> bytes:
    """The content of a file in a remote store."""
    from hbmwatch._profiles.store import opened

    try:
        with opened(address) as file:
            return file.read_bytes()
    except ProfileError as error:
        raise CommandError(str(error)) from error


class _Unclosed(io.RawIOBase):
    """A stream that stays open when what reads it is closed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """True: io.BufferedReader asks before it reads."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most as many bytes as the buffer holds."""
        read = getattr(self._stream, "read1", self._stream.read)
        data: bytes = read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _decompressed(raw: io.BufferedReader[Any], file: str) -> BinaryIO:
    """The stream itself, or what it holds in compressed form, known by how it begins."""
    start = raw.peek(_LONGEST_MAGIC)
    modules = next((names for magic, names in _FORMATS.items() if start.startswith(magic)), None)
    if modules is None:
        return raw
    for name in modules:
        try:
            opened: BinaryIO = import_module(name).open(raw)
        except ModuleNotFoundError:
            continue
        return opened
    raise CommandError(f"cannot read {file}: install the package {modules[-1]} for this format")


def _blocks(stream: BinaryIO, file: str) -> Iterator[bytes]:
    """The content in blocks."""
    # read() would lose what stands before the place at which a file is cut off.
    read = getattr(stream, "read1", stream.read)
    while True:
        try:
            block = read(_BLOCK)
        except OSError:
            raise
        except Exception as error:  # each module has its own for a damaged file
            print_on_stderr(f"{file} cannot be read to its end: {error}")
            return
        if not block:
            return
        yield block


def _utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The content in UTF-8, without a byte order mark."""
    blocks = iter(blocks)
    first = next(blocks, b"")
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in itertools.chain((first,), blocks):
        yield decoder.decode(block).encode("utf-8", "replace")
