"""What the tests of the commands share: how to run one, and a log with a failure."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from hbmwatch._cli.main import main

LOG = "step 7\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.94GiB.\nstep 8\n"


# A process of its own, because this one may have threads, which a fork does not copy.
_ON_A_TERMINAL = "import pty, sys; pty.spawn(['sh', '-c', sys.argv[1]])"


def on_a_terminal(command: str, columns: int) -> list[str]:
    """The command that runs a shell command on a terminal of its own."""
    return [sys.executable, "-c", _ON_A_TERMINAL, f"stty cols {columns} rows 50; exec {command}"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status, and what was printed to stdout and stderr."""
    capsys.readouterr()
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def run_in_child(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "hbmwatch", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=250, **options)
