"""Paths of arguments and outputs as the user writes them, where a library has trees of its own.

equinox.filter_jit gives the program lists of arrays ("dynamic_donate['rest'][17]"), and flax's
nnx.jit states ("optimizer.states[0][3]"), each in the order of the leaves of the user's arguments.
equinox returns a marker before the user's result, and nnx the updated states of the arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hbmwatch._jax.lowered import CallInfo, Leaf, array_leaves, call_info
from hbmwatch._jax.request import lowerable
from hbmwatch._records.paths import path_keys, path_prefix

# equinox: the leaves of the first argument, and those of the others.
_EQUINOX = re.compile(r"dynamic_(?:no)?donate\['(first|rest)'\]")
# flax nnx: the leaves of one argument.
_NNX = re.compile(r"(\w+)\.states\[")
# equinox: its own output, and the user's result; flax nnx: the states of arguments, and the result.
_MARKER, _RESULT = "result[0]", "result[1]"
_NNX_UPDATES, _NNX_RESULT = ("result[0]", "result[1]"), "result[2]"
_UPDATED = re.compile(r"result\[[01]\](\[\w+\]|\['\w+'\])\.states\[")
# The attribute of an nnx variable that has its array.
_VARIABLE = ".value"


def user_call_info(
    lowered: Any, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallInfo:
    """The call of a jax.stages.Lowered, with the paths in the arguments that the user passed."""
    owner, args, kwargs = lowerable(step, args, kwargs)
    return with_user_paths(call_info(lowered), array_leaves(owner, args, kwargs))


def with_user_paths(call: CallInfo, given: Sequence[Leaf]) -> CallInfo:
    """The call with the user's path of each leaf that a library has renamed.

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
    nameless = {path_prefix(leaf.path, 1) for leaf in given if leaf.positional}
    arguments = tuple(
        dataclasses.replace(
            leaf,
            user_path=paths.get(position, ""),
            positional=path_prefix(leaf.path, 1) in nameless,
        )
        for position, leaf in enumerate(call.arguments)
    )
    outputs = tuple(
        dataclasses.replace(leaf, user_path=path)
        for leaf, path in zip(call.outputs, _outputs(call.outputs, arguments), strict=True)
    )
    return dataclasses.replace(call, arguments=arguments, outputs=outputs)


def _outputs(outputs: Sequence[Leaf], arguments: Sequence[Leaf]) -> list[str]:
    """The user's paths of the outputs; "" where the program has it."""
    entries = ["".join(path_keys(leaf.path)[:2]) for leaf in outputs]
    if any(_EQUINOX.match(leaf.path) for leaf in arguments):
        marked = outputs[:1] and outputs[0].path == _MARKER and set(entries[1:]) == {_RESULT}
        return [_unwrapped(leaf.path, _RESULT) if marked else "" for leaf in outputs]
    states = [leaf for leaf in arguments if _NNX.match(leaf.path)]
    updated = [leaf for leaf in outputs if _UPDATED.match(leaf.path)]
    if not states or not set(entries) <= {*_NNX_UPDATES, _NNX_RESULT}:
        return [""] * len(outputs)
    same = [(a.shape, a.dtype) for a in states] == [(b.shape, b.dtype) for b in updated]
    names = iter([leaf.user_path for leaf in states] if same else [""] * len(updated))
    return [
        next(names) if _UPDATED.match(leaf.path) else _unwrapped(leaf.path, _NNX_RESULT)
        for leaf in outputs
    ]


def _unwrapped(path: str, result: str) -> str:
    """The path in the user's result of a leaf in the library's; "" where it is not in it."""
    return f"result{path.removeprefix(result)}" if path.startswith(result) else ""


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
