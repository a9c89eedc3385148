"""The rules, one file for each family of primitives. A primitive without a rule is made whole."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules import (
    along,
    axis,
    barriers,
    elementwise,
    indexing,
    layout,
    picks,
    random,
    reductions,
    reshapes,
)
from hbmwatch._preflight.pieces.rules.axis import Placement, Rule, Slot
from hbmwatch._preflight.pieces.split import Grid, Split, State

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **along.RULES,
    **random.RULES,
}
# Cheap to do again, for a piece or for all of it, rather than to keep the result.
CHEAP = frozenset({*elementwise.RULES, *layout.RULES, *random.RULES, "reshape"})


def place(
    node: Node, grid: Grid, slot: Slot, split: Split, have: Sequence[State]
) -> Placement | str:
    """How to make the outputs of a node when one of its inputs or outputs is split; or why not."""
    if node.name == "sharding_constraint":
        return barriers.place_constraint(node, grid, slot, split)
    if _names_devices(node):
        return "it places its output on devices"
    if node.name == "optimization_barrier":
        return barriers.place_barrier(node, grid, slot, split, have)
    if node.name == "reshape":
        return reshapes.place(node, grid, slot, split)
    if node.name not in RULES:
        return "no rule"
    way = axis.place(node, RULES[node.name], grid, slot, split)
    if isinstance(way, str) and node.name in indexing.RULES and "dynamic" not in node.name:
        picked = picks.place(node, grid, slot, split)
        return picked if not isinstance(picked, str) else way
    return way


def _names_devices(node: Node) -> bool:
    """Whether the equation also says where its output is placed.

    On a mesh whose axes are all automatic, JAX notes a sharding that says nothing.
    """
    places = (node.params.get(key) for key in ("sharding", "out_sharding", "dst_sharding"))
    return any(place is not None and not _is_automatic(place) for place in places)


def _is_automatic(sharding: object) -> bool:
    """Whether XLA chooses how a value is sharded: no mesh axis is explicit, and none is named."""
    if not isinstance(sharding, NamedSharding) or any(sharding.spec):
        return False
    return all(kind == AxisType.Auto for kind in sharding.mesh.axis_types)


def is_same_again(node: Node) -> bool:
    """Whether a reduction may be done twice, whole and from pieces: both give the same bits.

    A sum of floats rounds differently, and a program may compare the two, as the gradient of a
    maximum does. So of floats only a single number is summed again.
    """
    if node.name in reductions.EXACT:
        return True
    out = node.outputs[0]
    exact = not jnp.issubdtype(out.dtype, jnp.inexact)
    return node.name == "reduce_sum" and (exact or not out.shape)
