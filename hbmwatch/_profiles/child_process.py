"""What every child process of this package needs: an interpreter, and why it ended."""

from __future__ import annotations

import signal
import sys

from hbmwatch._records.profile_error import ProfileError


def interpreter(purpose: str) -> str:
    """The Python interpreter of this process.

    Args:
        purpose: What runs in the child process, as the beginning of a sentence ("XProf runs").

    Raises:
        ProfileError: There is none.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise ProfileError(
            f"{purpose} in a child process of the Python interpreter, which this program does not "
            "have (it is frozen, or sys.executable is not set)"
        )
    return sys.executable


def ended_by(status: int) -> str:
    """ "exit status 1", or "killed by SIGABRT"."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def last_lines(output: bytes) -> str:
    """The last lines that a child printed, as the end of a sentence; "" if there are none."""
    text = output[-4000:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": " + " | ".join(lines[-3:]) if lines else ""
