"""Which frame of a Python stack is in the user's code."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._records.libraries import is_library


def user_frame(stack: Sequence[str]) -> str:
    """The innermost frame in the user's code, as "train.py:88"; "" for an empty stack.

    A stack that is in libraries alone gives its innermost frame.

    Args:
        stack: Frames as "/path/file.py:line", innermost first.
    """
    if not stack:
        return ""
    users = (frame for frame in stack if not is_library(frame))
    return next(users, stack[0]).replace("\\", "/").rpartition("/")[2]
