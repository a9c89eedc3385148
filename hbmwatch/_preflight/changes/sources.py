"""Lines of the user for the equations of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from hbmwatch._jax.replay import stack_of
from hbmwatch._preflight.changes.call import nbytes
from hbmwatch._records.libraries import is_library
from hbmwatch._xla.frames import user_frame


def first_line_of(closed: Any, primitive: str | None, size_bytes: int) -> tuple[str, ...]:
    """The line of the first equation of a primitive whose output has this size, if one is known."""
    for equation, line in located(closed.jaxpr):
        sizes = (nbytes(v.aval) for v in equation.outvars if hasattr(v.aval, "shape"))
        if equation.primitive.name == primitive and size_bytes in sizes:
            return (line,) if line else ()
    return ()


def line_of(equation: Any) -> str:
    """The user's line that made an equation ("train.py:88"); "" where no frame is the user's."""
    return user_frame([frame for frame in stack_of(equation) if not is_library(frame)])


def located(jaxpr: Jaxpr, outer: str = "") -> Iterator[tuple[Any, str]]:
    """The equations of a jaxpr and of its bodies, each with the user's line.

    What a library jits, as jnp.take does, has no line of its own, and gets that of the call.
    """
    for equation in jaxpr.eqns:
        line = line_of(equation) or outer
        yield equation, line
        for body in bodies(equation):
            yield from located(body, line)


def bodies(equation: Any) -> Iterator[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    for parameter in equation.params.values():
        for body in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if isinstance(body, ClosedJaxpr):
                yield body.jaxpr
            elif isinstance(body, Jaxpr):
                yield body
