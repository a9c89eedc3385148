"""Which frame of a stack is the user's."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LIBRARY = re.compile(
    r"/(site|dist)-packages/(?!hbmwatch/_cli/demo)|/lib/python3(\.\d+)?/(?!(site|dist)-packages/)"
    r"|/jax/_src/|/jaxlib/|^<(?!stdin>|console>|ipython-input|python-input)"  # but for cells
    r"|/hbmwatch/(?!_cli/demo)[\w/]+\.py:",  # the watch is on the stack of what it calls
    re.IGNORECASE,
)


def user_frame(stack: Sequence[str]) -> str:
    """The first frame in the user's code, as "train.py:88"; the innermost where none is theirs.

    The user's code is what lies neither in an installed package nor in Python's library.

    Args:
        stack: Frames as "/path/file.py:line", innermost first.
    """
    if not stack:
        return ""
    frames = [frame.replace("\\", "/") for frame in stack]
    users = (frame for frame in frames if not _LIBRARY.search(frame))
    return next(users, frames[0]).rpartition("/")[2]
