"""XProf's conventions that both readers share: memory spaces, module names, small buffers."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def memory_color(memory_space: str) -> int:
    """XLA's number of a memory space.

    Raises:
        ValueError: No such memory space; the text lists them.
    """
    if memory_space not in MEMORY_SPACES:
        choices = ", ".join(map(repr, MEMORY_SPACES))
        raise ValueError(f"unknown memory_space {memory_space!r}: choose one of {choices}")
    return MEMORY_SPACES[memory_space]
