"""What the commands read and print: files, stdin, JSON, and sentences on stderr."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hbmwatch._cli.command import CommandError
from hbmwatch._records.addresses import remote_address
from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.text import clean, wrapped

_PROGRESS_DELAY_S = 1.0
_NARROWEST, _WIDEST = 60, 200
_WRITING = threading.RLock()  # a signal handler may write while its thread writes


def print_on_stderr(sentence: str) -> None:
    """Print a line on stderr, if there is one."""
    write_on_stderr(f"hbmwatch: {clean(sentence, 2000)}\n")


def write_on_stderr(text: str) -> None:
    """Write a text in one piece on stderr, if there is one, with escapes for what it cannot encode.

    print() writes to stdout when stderr is closed, and mixes the texts of several threads.
    """
    stream = sys.stderr
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None)
    if encoding:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    with _WRITING:
        stream.write(text)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def look_of(options: argparse.Namespace, stream: TextIO | None = None) -> Look:
    """How a text is laid out on a stream: as wide as its terminal, with color where allowed.

    Args:
        options: The arguments, with `color`: "always", "never", or "auto".
        stream: The stream; None: stdout.
    """
    stream = stream or sys.stdout
    color = options.color == "always" or (options.color == "auto" and _may_have_color(stream))
    width = PLAIN.width
    if _is_terminal(stream) and (columns := _columns(stream)):
        width = min(max(columns, _NARROWEST), _WIDEST)
    return Look(width, color, bars=color and _can_print_bars(stream))


def _columns(stream: TextIO) -> int:
    """The width of a terminal, or what COLUMNS says; 0 if it has none."""
    with contextlib.suppress(OSError, ValueError):
        named = shutil.get_terminal_size((0, 0)).columns
        return named or os.get_terminal_size(stream.fileno()).columns
    return 0


def _may_have_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not asked for plain text."""
    variable = os.environ.get
    if variable("NO_COLOR"):  # https://no-color.org
        return False
    return _is_terminal(stream) and not variable("CI") and variable("TERM") != "dumb"


def _is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal; what replaces stdout need not be able to say."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and isatty()


def _can_print_bars(stream: TextIO) -> bool:
    try:
        "█▏".encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def print_wrapped(text: object, options: argparse.Namespace) -> None:
    """Print lines that have no width of their own: a terminal breaks them at spaces.

    In a pipe a line stays one line. Lines of code stay as they are, so that they can be copied.
    """
    look = look_of(options)
    for line in str(text).split("\n"):
        lines = [line]
        if _is_terminal(sys.stdout) and not line.lstrip().startswith("write: "):
            indent = len(line) - len(line.lstrip())
            lines = wrapped(line.lstrip(), indent, whole_words=True, look=look)
        print("\n".join(map(look.marked, lines)))


def read_text(file: str) -> str:
    """The text of a file, or of stdin for "-"; bytes that are not UTF-8 become U+FFFD.

    Raises:
        CommandError: The file cannot be read.
        ProfileError: It is in a remote store, and cannot be read.
    """
    try:
        data = _read_stdin() if file == "-" else _read_file(file)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def write_text(file: str, text: str) -> None:
    """Write a text file.

    Raises:
        CommandError: It cannot be written.
    """
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error


def _read_file(file: str) -> bytes:
    """The content of a file of this host, or of a remote store."""
    if remote_address(file) is None:
        return Path(file).read_bytes()
    from hbmwatch._profiles.store import opened

    with opened(file) as location:
        return location.read_bytes()


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise CommandError("cannot read stdin: it is closed")
    if sys.stdin.isatty():
        print_on_stderr("paste the error, then press Ctrl-D")
    return sys.stdin.buffer.read()


@contextlib.contextmanager
def progress(activity: str) -> Iterator[None]:
    """Name a slow activity on the terminal while it lasts, from its second second on."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    line = f"hbmwatch: {activity} ..."
    shown = threading.Event()

    def show() -> None:
        print(line, end="", file=sys.stderr, flush=True)
        shown.set()

    timer = threading.Timer(_PROGRESS_DELAY_S, show)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Send the rest of stdout nowhere: Python flushes it at exit, which must not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
