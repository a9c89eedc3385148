"""Where a child process finds the modules that this process finds."""

from __future__ import annotations

import os
import sys


def python_path() -> str:
    """The value of PYTHONPATH with which a child process has this process's sys.path."""
    return os.pathsep.join(filter(None, (entry or _working_folder() for entry in sys.path)))


def _working_folder() -> str:
    """The working folder; "" where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
