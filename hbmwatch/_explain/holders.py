"""Which variables of the user's code hold live arrays."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import jax

from hbmwatch._records.cells import shown_file
from hbmwatch._records.libraries import is_library
from hbmwatch._records.report import DeviceMemory, LiveArrays

# It bounds the time of a report: a variable may hold a data set.
_MOST_LEAVES = 10_000
_MOST_HOLDERS = 3
_OWN_REFERENCES = 3  # the frame, our variable, and the argument of getrefcount
_READ_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


def with_holders(device: DeviceMemory | None, args: Any) -> DeviceMemory | None:
    """The device's memory, with the variables on the stack that hold its live arrays.

    Args:
        device: The device's memory.
        args: The call's arguments and outputs, whose arrays do not count.
    """
    if device is None or not device.live:
        return device
    passed = {id(leaf) for leaf in jax.tree_util.tree_leaves(args)}
    wanted = {(group.shape, group.dtype) for group in device.live}
    found: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for name, where, value in _variables():
        for form in {_form(array) for array in _arrays(value) if id(array) not in passed} & wanted:
            text = f"{name} in {where}"
            if text not in found.setdefault(form, []):
                found[form].append(text)
    live = tuple(_held(group, found.get((group.shape, group.dtype), ())) for group in device.live)
    return dataclasses.replace(device, live=live)


def _held(group: LiveArrays, by: Iterable[str]) -> LiveArrays:
    """A group with the variables that hold it."""
    return dataclasses.replace(group, held_by=tuple(by)[:_MOST_HOLDERS])


def _form(array: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype, by which live arrays are grouped."""
    return tuple(array.shape), str(array.dtype)


def _variables() -> Iterator[tuple[str, str, Any]]:
    """The variables of the user's functions on the stack and of their modules, innermost first."""
    frame: FrameType | None = inspect.currentframe()
    modules = set()
    while frame is not None:
        file, code = frame.f_code.co_filename, frame.f_code
        if not is_library(f"{file}:{frame.f_lineno}"):
            short = shown_file(file).replace("\\", "/").rpartition("/")[2]
            if code.co_name != "<module>":
                yield from _named(local_variables(frame), f"{code.co_name}(), {short}")
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                yield from _named(dict(frame.f_globals), f"module {short}")
        frame = frame.f_back


def local_variables(frame: FrameType) -> dict[str, Any]:
    """The local variables of a function that runs.

    Before Python 3.13 a frame keeps the dict that it gave for them, and with it what they held, as
    long as the function runs. So it is emptied; but a function that calls locals() has that very
    dict, and its variables are not read.
    """
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or not _READ_LOCALS.isdisjoint(code.co_names):
        return {}
    given = frame.f_locals
    found = dict(given)
    if sys.getrefcount(given) <= _OWN_REFERENCES:
        given.clear()
    return found


def _named(variables: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, Any]]:
    """The variables of one scope that may hold arrays."""
    for name, value in variables.items():
        if isinstance(value, (jax.Array, list, tuple, dict)) and not name.startswith("__"):
            yield name, where, value


def _arrays(value: Any) -> list[Any]:
    """The arrays in a variable; none where it is too large to search, or refuses."""
    if not isinstance(value, jax.Array) and len(value) > _MOST_LEAVES:
        return []
    try:
        leaves = jax.tree_util.tree_leaves(value)
    except Exception:  # keys that cannot be sorted, for example
        return []
    arrays = (leaf for leaf in leaves[:_MOST_LEAVES] if isinstance(leaf, jax.Array))
    return [array for array in arrays if not array.is_deleted()]
