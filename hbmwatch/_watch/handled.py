"""Whether the body of a `with` block handles an error itself, as its source code says.

At the end of a block, an array that failed may be one whose error the block has seen and handled:
JAX does not tell whether anybody has waited for it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from hbmwatch._explain.called import value_of
from hbmwatch._explain.holders import local_variables
from hbmwatch._records.libraries import is_library


def body_handles(error: BaseException) -> bool:
    """Whether the user's innermost `with` statement on the stack has code that catches the error.

    That is an `except` clause that does not raise the error again, or the error's class as the
    argument of another `with`, as in contextlib.suppress. False where there is no source code.
    """
    frame = inspect.currentframe()
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    names = {**vars(builtins), **frame.f_globals, **local_variables(frame)}
    body = _body_of_with(frame)
    return any(_catches(kind, names, error) for kind in _caught(body))


def _body_of_with(frame: FrameType) -> list[ast.stmt]:
    """The body of the `with` statement whose end a frame has reached; empty where unknown."""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        nodes = ast.walk(ast.parse("".join(lines)))
    except SyntaxError:  # a file that has changed, or the code of a cell with magics
        return []
    begun = [
        node
        for node in nodes
        if isinstance(node, (ast.With, ast.AsyncWith))
        and node.lineno <= frame.f_lineno <= max(node.lineno, node.body[0].lineno - 1)
    ]
    return max(begun, key=lambda node: node.lineno).body if begun else []


def _caught(body: list[ast.stmt]) -> Iterator[ast.expr | None]:
    """What the statements catch, as it is written; None for all errors."""
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.ExceptHandler):
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield from node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.withitem) and isinstance(node.context_expr, ast.Call):
            yield from node.context_expr.args


def _catches(kind: ast.expr | None, names: Mapping[str, Any], error: BaseException) -> bool:
    """Whether a class that is written in the code is one of the error's."""
    if kind is None:
        return True
    found = value_of(kind, names)
    return isinstance(found, type) and isinstance(error, found)
