"""Equations of a jaxpr, bound again with other values or other parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import source_info_util
from jax.extend.core import Literal

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
        callers: The calls that the equation is in, outermost first. They give its name stack.
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


def evaluated(
    closed: Any, args: Sequence[Any], step: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """The outputs of a jaxpr, equation by equation.

    Args:
        closed: The closed jaxpr.
        args: Its arguments.
        step: Gives the outputs of an equation for the values of its inputs.
    """
    jaxpr = closed.jaxpr
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        made = step(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def stack_of(equation: Any) -> tuple[str, ...]:
    """The frames that made an equation, innermost first, as "/path/file.py:line"."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    frames = traceback.frames
    return tuple(f"{frame.file_name}:{frame.line_num}" for frame in frames)
