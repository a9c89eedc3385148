"""Paths of arguments as the user writes them, where a library passes its own trees to jax.jit.

equinox.filter_jit gives the program lists of arrays ("dynamic_donate['rest'][17]"), and flax's
nnx.jit states ("optimizer.states[0][3]"), each in the order of the leaves of the user's arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hbmwatch._jax.lowered import CallInfo, Leaf, array_leaves, call_info
from hbmwatch._jax.request import lowerable
from hbmwatch._records.paths import path_prefix

# equinox: the leaves of the first argument, and those of the others.
_EQUINOX = re.compile(r"dynamic_(?:no)?donate\['(first|rest)'\]")
# flax nnx: the leaves of one argument.
_NNX = re.compile(r"(\w+)\.states\[")
# The attribute of an nnx variable that has its array.
_VARIABLE = ".value"


def user_call_info(
    lowered: Any, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallInfo:
    """The call of a jax.stages.Lowered, with the paths in the arguments that the user passed."""
    owner, args, kwargs = lowerable(step, args, kwargs)
    return with_user_paths(call_info(lowered), array_leaves(owner, args, kwargs))


def with_user_paths(call: CallInfo, given: Sequence[Leaf]) -> CallInfo:
    """The call with the user's path of each argument leaf that a library has renamed.

    Leaves are matched by their order; a group of them whose shapes or dtypes differ is left as it
    is, since a library may drop leaves or pass one only once.

    Args:
        call: The call, as it was lowered.
        given: The array leaves of the arguments that the user passed, in order.
    """
    first = path_prefix(given[0].path, 1) if given else ""
    paths: dict[int, str] = {}
    for group, positions in _groups(call.arguments).items():
        theirs = [leaf for leaf in given if _is_in(group, path_prefix(leaf.path, 1), first)]
        ours = [call.arguments[position] for position in positions]
        if [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in theirs]:
            named = (leaf.path.removesuffix(_VARIABLE) for leaf in theirs)
            paths |= dict(zip(positions, named, strict=True))
    if not paths:
        return call
    arguments = (
        dataclasses.replace(leaf, user_path=paths.get(position, ""))
        for position, leaf in enumerate(call.arguments)
    )
    return dataclasses.replace(call, arguments=tuple(arguments))


def _groups(arguments: Iterable[Leaf]) -> dict[str, list[int]]:
    """The positions of the leaves that a library has renamed, by equinox's list or nnx's name."""
    groups: dict[str, list[int]] = {}
    for position, leaf in enumerate(arguments):
        equinox, nnx = _EQUINOX.match(leaf.path), _NNX.match(leaf.path)
        if equinox is not None:
            groups.setdefault(f"['{equinox[1]}']", []).append(position)
        elif nnx is not None:
            groups.setdefault(nnx[1], []).append(position)
    return groups


def _is_in(group: str, root: str, first: str) -> bool:
    """Whether an argument's leaves are in a group, by its name and that of the first argument."""
    if group.startswith("["):
        return (root == first) == (group == "['first']")
    return root == group
