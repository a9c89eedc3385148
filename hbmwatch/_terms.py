"""XProf's terms that both readers share: memory spaces, small buffers, and whose a frame is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# XLA's memory colors, as XProf numbers them; on GPU, 1 holds collectives' memory and 2 temporaries.
MEMORY_SPACES: Mapping[str, int] = {
    "hbm": 0,
    "vmem": 1,
    "sflag": 2,
    "cmem": 3,
    "smem": 4,
    "host": 5,
    "sparsecore": 6,
    "collective": 1,
    "temp": 2,
}
# Buffers below this are one row.
SMALL_BYTES = 16 * 1024
MODULE_NAME = re.compile(r"(?P<module>.*)\((?P<id>-?\d+)\)(?P<copy> #\d+)?", re.DOTALL)
_LIBRARY = re.compile(
    r"/(site|dist)-packages/(?!hbmwatch/_demo)|/lib/python3(\.\d+)?/(?!(site|dist)-packages/)"
    r"|/jax/_src/|/jaxlib/|^<(?!stdin>|console>|ipython-input|python-input)"  # but for cells
    r"|/hbmwatch/_(?!demo)\w+\.py:",  # the watch is on the stack of what it calls
    re.IGNORECASE,
)


def memory_color(memory_space: str) -> int:
    """XLA's number of a memory space.

    Raises:
        ValueError: No such memory space; the text lists them.
    """
    if memory_space not in MEMORY_SPACES:
        choices = ", ".join(map(repr, MEMORY_SPACES))
        raise ValueError(f"unknown memory_space {memory_space!r}: choose one of {choices}")
    return MEMORY_SPACES[memory_space]


def source_of(stack: Sequence[str]) -> str:
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
