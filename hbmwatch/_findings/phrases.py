"""Words, source lines and links that several findings use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from hbmwatch._analysis.live_buffers import LiveBuffer, is_backward
from hbmwatch._records.paths import path_keys
from hbmwatch._records.text import clean

ERROR_1000 = "https://openxla.org/xla/errors/error_1000"
LAX_MAP = "https://docs.jax.dev/en/latest/_autosummary/jax.lax.map.html"
LAX_SCAN = "https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html"
DONATION = "https://docs.jax.dev/en/latest/buffer_donation.html"
SHARDING = (
    "https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html"
)

# The remedy for a result of the program where others go over blocks.
OF_RESULTS = (
    "Blocks alone do not make a result of the program smaller. Reduce it inside of the blocks (to "
    "a sum, or to the largest entries), shard it, or call the function for one block at a time and "
    "move each result to host memory."
)
# Nobody can shard an array over more devices than the largest meshes have.
MOST_DEVICES = 4096


def mesh_exists(devices: int) -> bool:
    """Whether a mesh can have so many devices, so that advice may name it."""
    return devices <= MOST_DEVICES


def list_some(names: Iterable[str], most: int = 3) -> str:
    """ "a, b, c and 2 more"."""
    distinct = list(dict.fromkeys(names))
    text = ", ".join(distinct[:most])
    return text if len(distinct) <= most else f"{text} and {len(distinct) - most} more"


def either(choices: Sequence[str]) -> str:
    """ "a, b, or c", "a or b", "a"."""
    if len(choices) < 2:
        return "".join(choices)
    return f"{', '.join(choices[:-1])}{',' if len(choices) > 2 else ''} or {choices[-1]}"


def short_paths(paths: Iterable[str]) -> list[str]:
    """Paths cut after their second key, or after the first where the second is an index."""
    short = []
    for path in paths:
        keys = path_keys(path)[:2]
        if len(keys) == 2 and keys[1].strip("[]").isdigit():
            keys.pop()
        short.append("".join(keys))
    return list(dict.fromkeys(short))


class _Leaf(Protocol):
    """An argument, an output, or what a finding knows of one."""

    @property
    def path(self) -> str:
        """Its pytree path."""

    @property
    def size_bytes(self) -> int:
        """Its bytes on one device."""


def largest_paths(leaves: Iterable[_Leaf], short: Callable[[str], str] | None = None) -> list[str]:
    """The short paths of leaves, that with the most bytes first.

    Args:
        leaves: The leaves.
        short: Shortens a path; None: short_paths.
    """
    sizes: dict[str, int] = {}
    for leaf in leaves:
        path = short(leaf.path) if short is not None else short_paths([leaf.path])[0]
        sizes[path] = sizes.get(path, 0) + leaf.size_bytes
    return sorted(sizes, key=lambda path: -sizes[path])


def top_lines(buffers: Sequence[LiveBuffer], most: int = 2) -> str:
    """The source lines with the most bytes ("train.py:88, train.py:90 and 2 more").

    What the backward pass makes follows from a line of the forward pass, and counts half.
    """
    weight: dict[str, float] = {}
    for live in buffers:
        if live.source:
            source = clean(live.source, 60)  # alone, so that each place in a list is readable
            size = live.size_bytes / (2 if is_backward(live.name) else 1)
            weight[source] = weight.get(source, 0) + size
    return list_some(sorted(weight, key=lambda source: -weight[source]), most)


def at_line(buffers: Sequence[LiveBuffer]) -> str:
    """ " at train.py:88", the source line with the most bytes; "" where none is known."""
    line = top_lines(buffers, 1).partition(" and ")[0]
    return f" at {line}" if line else ""


def at_lines(buffers: Sequence[LiveBuffer]) -> str:
    """ " at train.py:88, train.py:90 and 2 more"; "" where no source line is known."""
    lines = top_lines(buffers, 3)
    return f" at {lines}" if lines else ""
