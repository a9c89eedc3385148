"""XProf's conventions, shared by both readers: memory spaces, module names, small buffers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hbmwatch._xla.types import MemoryColor

# The names that callers use; on GPU, "hbm" is the device's memory.
MEMORY_SPACES: Mapping[str, MemoryColor] = {
    name.lower(): color for name, color in MemoryColor.__members__.items()
}
# XProf combines buffers smaller than this in one row.
SMALL_BYTES = 16 * 1024
MODULE_NAME = re.compile(r"(?P<module>.*)\((?P<id>-?\d+)\)(?P<copy> #\d+)?", re.DOTALL)


def memory_color(memory_space: str) -> MemoryColor:
    """XLA's number of a memory space ("hbm": 0).

    Raises:
        ValueError: No such memory space; the text lists them.
    """
    if memory_space not in MEMORY_SPACES:
        choices = ", ".join(map(repr, MEMORY_SPACES))
        raise ValueError(f"unknown memory_space {memory_space!r}: choose one of {choices}")
    return MEMORY_SPACES[memory_space]
