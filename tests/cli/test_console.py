"""Progress on a terminal: shown while an activity lasts, wiped away afterwards."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading

import pytest

from hbmwatch._cli import console


def test_progress_shows_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow activity is named on stderr, and the line is wiped when it ends."""
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0.0)
    leader, follower = pty.openpty()
    text = b"hbmwatch: reading ..."
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb", 0) as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with console.progress("reading"):
            shown = _read(seen, len(text))  # it waits for the line
        wiped = _read(seen, len(text) + 2)
    assert (shown, wiped) == (text, b"\r" + b" " * len(text) + b"\r")


def _read(file: io.FileIO, length: int) -> bytes:
    """So many bytes of a terminal, which gives them in pieces."""
    data = b""
    while len(data) < length:
        data += file.read(length - len(data)) or b""
    return data


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file or a pipe nothing is printed, and no timer is started for it."""
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0.0)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    before = set(threading.enumerate())
    with console.progress("reading"):
        started = set(threading.enumerate()) - before
    assert (started, stderr.getvalue()) == (set(), "")
