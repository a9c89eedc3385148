"""Equations of a jaxpr, bound again with other values or other parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from jax._src import source_info_util

# `source_info_util` is private. It keeps the user's frames on the new equations: without it, the
# compiler's messages would name this file in place of the user's line.


def bind(
    equation: Any, values: Sequence[Any], changes: Mapping[str, Any], callers: Sequence[Any] = ()
) -> list[Any]:
    """The outputs of `equation` for other values, with some parameters changed.

    Args:
        equation: An equation of a jaxpr.
        values: One value for each input of the equation.
        changes: Parameters that differ from the equation's own.
        callers: The calls that the equation lies in, outermost first. They give its name stack.
    """
    primitive = equation.primitive
    bound = primitive.get_bind_params({**equation.params, **changes})
    # jax before 0.7 gives the functions among the parameters apart.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    with contextlib.ExitStack() as stack:
        for each in (*callers, equation):
            info = each.source_info
            names = source_info_util.current_name_stack() + info.name_stack
            stack.enter_context(source_info_util.user_context(info.traceback, name_stack=names))
        stack.enter_context(equation.ctx.manager)
        outputs = primitive.bind(*functions, *values, **params)
    return list(outputs) if primitive.multiple_results else [outputs]


def stack_of(equation: Any) -> tuple[str, ...]:
    """The frames that made an equation, innermost first, as "/path/file.py:line"."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    frames = traceback.frames
    return tuple(f"{frame.file_name}:{frame.line_num}" for frame in frames)
