"""The arguments that failed calls have lost: donation deletes an array also if the call fails."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from hbmwatch._explain.failure import FailedCall
from hbmwatch._explain.problems import text_of
from hbmwatch._records.text import listed

_REMEMBERED_CALLS = 8
_NAMED = 4  # how many arguments a note lists
# JAX: "Array has been deleted with shape=float32[4]."; PJRT: "buffer has been deleted or donated".
_SAYS = "has been deleted"

_Lost = tuple[str, dict[int, "weakref.ref[Any]"]]
_lost: deque[_Lost] = deque(maxlen=_REMEMBERED_CALLS)


def remember_lost(function_name: str, arrays: Iterable[Any]) -> None:
    """Remember the arrays that a call has lost that ran out of memory, without keeping them.

    Args:
        function_name: The function that was called.
        arrays: Its arguments that are deleted.
    """
    found = {id(array): weakref.ref(array) for array in arrays}
    if found:
        _lost.append((function_name, found))


def note_on_lost(failed: FailedCall) -> str:
    """What to say of a call that was given such arrays; "" for any other call."""
    from hbmwatch._jax.device import deleted_arguments

    given = deleted_arguments(failed.function_object, failed.args, failed.kwargs)
    for name, arrays in reversed(_lost):
        paths = [path for path, array in given if _is_among(array, arrays)]
        if paths:
            return _note(paths, name)
    return ""


def may_be_of_lost(error: BaseException) -> bool:
    """Whether an error is about a deleted array, and calls have lost arrays."""
    return bool(_lost) and _SAYS in text_of(error)


def _is_among(array: Any, arrays: dict[int, weakref.ref[Any]]) -> bool:
    known = arrays.get(id(array))
    return known is not None and known() is array


def _note(paths: Sequence[str], name: str) -> str:
    """What is lost, and what to do."""
    more = len(paths) - _NAMED
    which = listed([*paths[:_NAMED], *([f"{more} more"] if more > 0 else [])])
    was, them = ("was", "it") if len(paths) == 1 else ("were", "them")
    call = f"a call of {name}" if name else "a call"
    return (
        f"hbmwatch: {which} {was} donated to {call} that ran out of memory. A donated argument is "
        f"deleted even if the call fails: restore {them} before the next call."
    )
