"""What the tests of the commands share: how to run one, and a log with a failure."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from hbmwatch._cli.main import main

LOG = "step 7\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.94GiB.\nstep 8\n"


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
