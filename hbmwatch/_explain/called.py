"""Which functions the line of the user's code that failed calls."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Mapping
from types import CodeType, TracebackType
from typing import Any

from hbmwatch._explain.holders import local_variables
from hbmwatch._jax.eager import eager_primitive
from hbmwatch._records.libraries import is_library

_JAX = re.compile(r"[/\\](?:jax|jaxlib|hbmwatch)[/\\]")
_LONGEST_CALL = 10_000  # characters


def failing_frame(frames: TracebackType | None) -> TracebackType | None:
    """The innermost frame of a traceback that is in the user's code; None if there is none."""
    return _innermost(frames, lambda file: not is_library(file))


def called_functions(frames: TracebackType | None) -> list[object]:
    """The functions that the failing expression calls, else their names.

    The expression is that of the user's code, and the last one before JAX's: a library may call
    the jitted function. In `train(x).block_until_ready()` the functions are "block_until_ready" and
    what `train` stands for. Nothing is evaluated: a name is looked up, an attribute in its object's
    dict. An operation that JAX runs by itself is the primitive's name.

    Args:
        frames: The traceback of the error.
    """
    primitive = eager_primitive(frames, local_variables)
    if primitive:
        return [primitive]
    callers = failing_frame(frames), _innermost(frames, lambda file: not _JAX.search(file))
    return [
        function
        for failing in dict.fromkeys(callers)
        if failing is not None
        for function in _functions(failing)
    ]


def _innermost(
    frames: TracebackType | None, is_wanted: Callable[[str], bool]
) -> TracebackType | None:
    """The innermost frame whose file is wanted; None if there is none."""
    found = None
    while frames is not None:
        if is_wanted(frames.tb_frame.f_code.co_filename):
            found = frames
        frames = frames.tb_next
    return found


def _functions(failing: TracebackType) -> list[object]:
    """The functions that the expression calls which a frame was evaluating."""
    calls = [node for node in ast.walk(_expression(failing)) if isinstance(node, ast.Call)]
    variables = {**failing.tb_frame.f_globals, **local_variables(failing.tb_frame)}
    return [_function(call.func, variables) for call in calls]


def _expression(failing: TracebackType) -> ast.AST:
    """The expression that a frame was evaluating; an empty module where that is not known."""
    code, frame = failing.tb_frame.f_code, failing.tb_frame
    start, end, left, right = _position(code, failing.tb_lasti)
    lines = [
        linecache.getline(code.co_filename, number, frame.f_globals).encode()
        for number in range(start, end + 1)
    ]
    if not lines:
        return ast.Module([], [])
    lines[-1] = lines[-1][:right]
    lines[0] = lines[0][left:]
    text = b"".join(lines).decode(errors="replace")
    try:
        return ast.parse(f"({text[:_LONGEST_CALL]})", mode="eval")
    except SyntaxError:  # a statement, or a file that has changed
        return ast.Module([], [])


def _position(code: CodeType, instruction: int) -> tuple[int, int, int, int]:
    """The lines and the columns, in bytes, of an instruction; no lines where unknown."""
    positions = list(code.co_positions())
    found = positions[instruction // 2] if 0 <= instruction // 2 < len(positions) else (None,) * 4
    start, end, left, right = found
    if start is None or end is None or left is None or right is None:
        return 1, 0, 0, 0
    return start, end, left, right


def _function(expression: ast.expr, variables: Mapping[str, Any]) -> object:
    """The function that a name or an attribute stands for, else the name itself."""
    value = value_of(expression, variables)
    if value is None and isinstance(expression, ast.Name):
        return expression.id
    return expression.attr if value is None and isinstance(expression, ast.Attribute) else value


def value_of(expression: ast.expr, variables: Mapping[str, Any]) -> Any:
    """What a name or an attribute stands for, without running any code; None where unknown."""
    if isinstance(expression, ast.Name):
        return variables.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = value_of(expression.value, variables)
        return None if owner is None else inspect.getattr_static(owner, expression.attr, None)
    return None
