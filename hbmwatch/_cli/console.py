"""What the commands read and print: files, stdin, JSON, and sentences on stderr."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from hbmwatch._cli.command import CommandError
from hbmwatch._records.text import clean

_PROGRESS_DELAY_S = 1.0


def print_on_stderr(sentence: str) -> None:
    """Print a line on stderr if there is one; print() writes to stdout when stderr is closed."""
    if sys.stderr is not None:
        print(f"hbmwatch: {clean(sentence, 2000)}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def read_text(file: str) -> str:
    """The text of a file, or of stdin for "-"; bytes that are not UTF-8 become U+FFFD.

    Raises:
        CommandError: The file cannot be read.
    """
    try:
        data = _read_stdin() if file == "-" else Path(file).read_bytes()
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
