"""Pytree paths, as JAX writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

# Keys that tell one copy of a model's tree from another.
_TELLING = frozenset(
    "mu nu m v params grads ema velocity momentum trace acc_grads exp_avg exp_avg_sq v_row "
    "v_col".split()
)


def path_keys(path: str) -> list[str]:
    """The keys of a path: "state", ".opt", "['mu']" and "[0]" of "state.opt['mu'][0]"."""
    parts = path.replace("].", "]\0.").replace("[", "\0[").replace(".", "\0.").split("\0")
    return [part for part in parts if part]


def shortened(path: str, width: int) -> str:
    """A path that fits a width if possible: keys in the middle are left out.

    The first key stays, the last one, and what tells the moments of an optimizer apart; of the
    others, the front ones go first: "state…['mu']…['kernel']".
    """
    keys = path_keys(path)
    left_out: set[int] = set()
    length = len(path)  # kept up to date, as a path may have thousands of keys
    for position in range(1, len(keys) - 1):
        if length <= width:
            break
        if keys[position].strip("[].'\"") in _TELLING:
            continue
        following = keys[position + 1]  # it may be an index of what is left out
        is_index = following.strip("[]").isdigit() or following == "[*]"
        for place in {position, position + is_index} - left_out:
            left_out.add(place)
            length -= len(keys[place])
        length += position - 1 not in left_out  # the ellipsis of a run
    return _without(keys, left_out)


def _without(keys: Sequence[str], left_out: Set[int]) -> str:
    """The keys of a path, with one ellipsis for each run of keys that are left out."""
    shown = ["\0" if position in left_out else key for position, key in enumerate(keys)]
    return re.sub("\0+", "\N{HORIZONTAL ELLIPSIS}", "".join(shown))


def path_prefix(path: str, most: int) -> str:
    """The first keys of a path: of "state.opt['mu'][0]" with 2 "state.opt"."""
    return "".join(path_keys(path)[:most])
