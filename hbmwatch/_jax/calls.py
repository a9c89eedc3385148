"""Which call of which function each equation was traced in.

JAX keeps the frames of an equation as lines, which do not tell one call of a function from the
next. A recording looks at the frames themselves while JAX traces: a frame is one call.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax._src import source_info_util

from hbmwatch._jax.intercept import replaced
from hbmwatch._records.libraries import is_library

# `source_info_util.current` is private: JAX asks it where each equation comes from. Its answer has
# our own frames on top, which `register_exclusion` takes out of what JAX shows as the user's line.
source_info_util.register_exclusion(str(Path(__file__).parent))

_OF_JAX = ("jax", "jaxlib", "hbmwatch")


class Function(NamedTuple):
    """A Python function, by where it is defined.

    Attributes:
        file: The path of its file.
        line: The line of its definition, or of its first decorator.
        name: Its qualified name without the functions around it: "Block.__call__", "<lambda>".
        is_users: Whether it is in the user's code; else it is in a library.
    """

    file: str
    line: int
    name: str
    is_users: bool


class Call(NamedTuple):
    """One call of a function."""

    function: Function
    number: int


class Traced(NamedTuple):
    """Where an equation was traced.

    Attributes:
        calls: The calls that it is in, outermost first, without those of JAX's own functions.
        line: The line that runs in the innermost of them; 0 where there is none.
    """

    calls: tuple[Call, ...]
    line: int


class Recording:
    """The calls that each equation is in, outermost first."""

    def __init__(self) -> None:
        self._stack: list[tuple[types.FrameType, Call | None]] = []
        self._count = 0
        self._functions: dict[types.CodeType, Function | None] = {}
        # The objects are kept, so that no other object gets their id.
        self._by_info: dict[int, tuple[Any, Traced]] = {}
        self._by_traceback: dict[int, tuple[Any, Traced]] = {}

    def traced(self, equation: Any) -> Traced:
        """Where an equation was traced; no calls if this did not record then."""
        info = equation.source_info
        found = self._by_info.get(id(info)) or self._by_traceback.get(id(info.traceback))
        return found[1] if found else Traced((), 0)

    def now(self) -> Traced:
        """Where the caller is."""
        return self._traced()

    def note(self, real: Callable[[], Any]) -> Any:
        """JAX's own source info, as a new object; the calls around it are noted."""
        info = real()
        traced = self._traced()
        known = self._by_traceback.get(id(info.traceback))
        # JAX binds the equations of a traced body once more, from the frame that called the body.
        if known and known[1].calls[: len(traced.calls)] == traced.calls:
            traced = known[1]
        info = info.replace()
        self._by_info[id(info)] = info, traced
        self._by_traceback[id(info.traceback)] = info.traceback, traced
        return info

    def forget_frames(self) -> None:
        """Let go of the frames, and so of the tracers in their variables."""
        self._stack.clear()

    def _traced(self) -> Traced:
        """The calls on the stack, of functions that are not JAX's, and the line of the last."""
        frames = []
        frame = inspect.currentframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        frames.reverse()
        same = 0
        for (old, _), now in zip(self._stack, frames):
            if old is not now:
                break
            same += 1
        del self._stack[same:]
        self._stack += [(each, self._call(each)) for each in frames[same:]]
        calls = [(frame, call) for frame, call in self._stack if call is not None]
        line = calls[-1][0].f_lineno if calls else 0
        return Traced(tuple(call for _, call in calls), line)

    def _call(self, frame: types.FrameType) -> Call | None:
        code = frame.f_code
        if code not in self._functions:
            self._functions[code] = _function(code)
        function = self._functions[code]
        if function is None:
            return None
        self._count += 1
        return Call(function, self._count)


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """In the body, what this thread traces is recorded."""
    recording = Recording()
    try:
        with replaced(source_info_util, "current", recording.note):
            yield recording
    finally:
        recording.forget_frames()


def _function(code: types.CodeType) -> Function | None:
    """The function of a code object; None for JAX's own, Python's, and what is no function."""
    path = code.co_filename.replace("\\", "/")
    name = code.co_qualname.rpartition("<locals>.")[2]
    if name in ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"):
        return None
    if not is_library(path):
        return Function(code.co_filename, code.co_firstlineno, name, is_users=True)
    _, installed, inner = path.rpartition("-packages/")
    if not installed or inner.partition("/")[0] in _OF_JAX:
        return None
    return Function(code.co_filename, code.co_firstlineno, name, is_users=False)
