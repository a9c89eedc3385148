"""Equations that may take partial values: what they do to the parts, they do to the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Placement
from hbmwatch._preflight.pieces.split import Partial, Piece, Split, State

Positions = frozenset[int]
# Which inputs must be partial, given those that are; None where the equation needs the number.
Wanted = Callable[[Node, Positions], Positions | None]
_MOVES = ("reshape", "squeeze", "transpose", "copy", "copy_p", "name")
_ADDS = ("add", "add_any", "sub")


def place(node: Node, have: Sequence[State], *, inside: bool) -> Placement | str:
    """How an equation takes partial values.

    Args:
        node: The equation.
        have: What is known of its inputs; at least one is partial.
        inside: Whether it is in the body of a loop. There a partial value cannot be made whole,
            so that more equations are done on the parts.
    """
    partial = frozenset(k for k, s in enumerate(have) if isinstance(s, Partial))
    (operation, *others) = {s.operation for s in have if isinstance(s, Partial)}
    if others or any(isinstance(s, Split) for s in have):
        return "it mixes parts of different kinds"
    wanted = _wanted(node, operation, partial, inside)
    if wanted is None:
        what = "what the loop makes" if operation == "any" else f"the {operation}"
        return f"it needs {what} over all pieces"
    state = Partial(operation)
    ins = tuple(state if k in wanted else s for k, s in enumerate(have))

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        return replay.bind(node.equation, values, {}, node.callers)

    return Placement(ins, tuple(state for _ in node.outputs), run)


def _wanted(node: Node, operation: str, partial: Positions, inside: bool) -> Positions | None:
    name, both = node.name, frozenset(range(len(node.inputs)))
    if name in _MOVES:
        return partial
    if operation != "sum":
        return both if name in (operation, f"reduce_{operation}") and partial == both else None
    if name in ("neg", "reduce_sum"):
        return partial
    if name == "convert_element_type":
        return partial if _widens(node) else None
    if name in _ADDS and (inside or partial == both):
        return both
    return _INSIDE[name](node, partial) if inside and name in _INSIDE else None


def _widens(node: Node) -> bool:
    """Whether a conversion keeps every number: from a float to one that is at least as wide."""
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    floats = jnp.issubdtype(before, jnp.floating) and jnp.issubdtype(after, jnp.floating)
    return bool(floats and jnp.promote_types(before, after) == after)


def _only(*allowed: int) -> Wanted:
    """Linear in each of some inputs, when the others are whole."""

    def wanted(node: Node, partial: Positions) -> Positions | None:
        return partial if len(partial) == 1 and partial <= {*allowed} else None

    return wanted


def _together(*allowed: int) -> Wanted:
    """Linear in some inputs taken together."""

    def wanted(node: Node, partial: Positions) -> Positions | None:
        return frozenset(allowed) if partial <= {*allowed} else None

    return wanted


def _floats(wanted: Wanted) -> Wanted:
    """The same for floats; integers round toward zero."""

    def checked(node: Node, partial: Positions) -> Positions | None:
        exact = jnp.issubdtype(node.outputs[0].dtype, jnp.inexact)
        return wanted(node, partial) if exact else None

    return checked


def _pad(node: Node, partial: Positions) -> Positions | None:
    """Padding with zeros."""
    padding = node.inputs[1].known
    zero = padding is not None and not np.any(np.asarray(padding))
    return partial if zero and partial == {0} else None


def _all(node: Node, partial: Positions) -> Positions | None:
    return frozenset(range(len(node.inputs)))


def _cases(node: Node, partial: Positions) -> Positions | None:
    """A choice by a whole predicate: each case is partial."""
    return None if 0 in partial else frozenset(range(1, len(node.inputs)))


_INSIDE: dict[str, Wanted] = {
    "broadcast_in_dim": _only(0),
    "concatenate": _all,
    "div": _floats(_only(0)),
    "dot_general": _only(0, 1),
    "dynamic_slice": _only(0),
    "dynamic_update_slice": _together(0, 1),
    "mul": _only(0, 1),
    "pad": _pad,
    "rev": _only(0),
    "scatter-add": _together(0, 2),
    "scatter_add": _together(0, 2),
    "select_n": _cases,
    "slice": _only(0),
}
