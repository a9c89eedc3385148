"""A function of JAX replaced for one thread, for a moment, and restored as the same object."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.RLock()
_installed: dict[tuple[int, str], _Dispatcher] = {}


class _Dispatcher:
    """The function in the owner's attribute while at least one thread replaces it."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        self.by_thread: dict[int, list[Callable[..., Any]]] = {}

    def function(self) -> Callable[..., Any]:
        """A plain function, so that it binds as a method where the owner is a class."""

        @functools.wraps(self.real)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            replacements = self.by_thread.get(threading.get_ident())
            if not replacements:
                return self.real(*args, **kwargs)
            return replacements[-1](self.real, *args, **kwargs)

        return dispatch


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """`owner.name` is `replacement(real, ...)` for calls from this thread while the body runs.

    Other threads reach the real function, and after the last body the owner has the same object as
    before.

    Args:
        owner: A module or a class.
        name: The attribute; it must be there.
        replacement: Called with the real function first, then with the arguments of the call.
    """
    key, thread = (id(owner), name), threading.get_ident()
    with _lock:
        if key not in _installed:
            _installed[key] = _Dispatcher(vars(owner)[name])
            setattr(owner, name, _installed[key].function())
        dispatcher = _installed[key]
        dispatcher.by_thread.setdefault(thread, []).append(replacement)
    try:
        yield
    finally:
        with _lock:
            dispatcher.by_thread[thread].pop()
            if not dispatcher.by_thread[thread]:
                del dispatcher.by_thread[thread]
            if not dispatcher.by_thread:
                setattr(owner, name, dispatcher.real)
                del _installed[key]
