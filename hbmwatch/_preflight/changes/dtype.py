"""Pass float arguments as bfloat16."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import (
    Call,
    Leaf,
    NothingToChange,
    names,
    path_keys,
    typed,
)
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow(Edit):
    """Some arguments as bfloat16; the outputs that replace them keep that type."""

    numbers_values = True

    arguments: tuple[int, ...]

    def on(self, call: Call) -> Call:
        """The step traced again with narrower arguments."""
        shapes = [leaf.shape for leaf in call.arguments]
        for i in self.arguments:
            if is_wide(shapes[i].dtype):
                old = shapes[i]
                shapes[i] = jax.ShapeDtypeStruct(old.shape, jnp.bfloat16, sharding=old.sharding)
        kept = [o for i, o in call.updated().items() if i in self.arguments]
        new = call.retraced(shapes)
        cast = {i: dataclasses.replace(new.arguments[i], moved=True) for i in self.arguments}
        return _returned(new.with_arguments(cast), dict.fromkeys(kept, jnp.bfloat16))


def is_wide(dtype: Any) -> bool:
    """Whether it is a float wider than bfloat16."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize > 2


def _returned(call: Call, wanted: dict[int, Any]) -> Call:
    """The call with some outputs in other dtypes, so that state is returned as it was passed in."""
    wanted = {o: dtype for o, dtype in wanted.items() if call.outputs[o].shape.dtype != dtype}
    if not wanted:
        return call
    flat = jaxpr_as_fun(call.jaxpr)

    def run(*arrays: Any) -> list[Any]:
        return [
            array.astype(wanted[o]) if o in wanted else array
            for o, array in enumerate(flat(*arrays))
        ]

    jaxpr = jax.make_jaxpr(run)(*(typed(aval) for aval in call.jaxpr.in_avals))
    outputs = tuple(
        dataclasses.replace(leaf, shape=typed(aval, leaf.sharding))
        for leaf, aval in zip(call.outputs, jaxpr.out_avals, strict=True)
    )
    return call.changed(jaxpr=jaxpr, outputs=outputs, given=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepDtype(Edit):
    """Outputs in the dtypes of the arguments that they replace."""

    numbers_values = True
    outputs: tuple[tuple[int, int], ...]

    def on(self, call: Call) -> Call:
        """The call that casts them at its end."""
        wanted = {o: call.arguments[i].shape.dtype for i, o in self.outputs}
        return _returned(call, wanted)


def _widened(call: Call) -> tuple[tuple[int, int], ...]:
    """Arguments that are returned in a wider dtype, each with that output."""
    keys = {
        (path_keys(path)[1:], leaf.shape.shape): i
        for i, leaf in enumerate(call.arguments)
        for path in (leaf.path, leaf.name)
    }
    found = []
    for o, leaf in enumerate(call.outputs):
        i = keys.get((path_keys(leaf.path)[1:], leaf.shape.shape))
        if i is not None and _is_wider(leaf.shape.dtype, call.arguments[i].shape.dtype):
            found.append((i, o))
    return tuple(found)


def _is_wider(one: Any, other: Any) -> bool:
    both = jnp.issubdtype(one, jnp.floating) and jnp.issubdtype(other, jnp.floating)
    return bool(both) and one.itemsize > other.itemsize


def _kept_edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    widened = _widened(call)
    if not widened:
        raise NothingToChange("no argument is returned in a wider dtype")
    leaves = [call.outputs[o] for _, o in widened]
    dtype = call.arguments[widened[0][0]].shape.dtype.name
    yield KeepDtype(
        what=f"returning {names(leaves)} as {dtype}, the dtype that they had as arguments",
        code=f"cast {names(leaves)} to {dtype} before they are returned",
        outputs=widened,
    )


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    chosen = asked.chosen(call) if asked.paths else range(len(call.arguments))
    wide = [i for i in sorted(chosen) if _is_array(call.arguments[i])]
    if not wide:
        raise NothingToChange("no argument is a float wider than bfloat16")
    leaves = [call.arguments[i] for i in wide]
    yield Narrow(
        what=f"casting {names(leaves)} to bfloat16",
        code=f"pass {names(leaves)} as bfloat16",
        arguments=tuple(wide),
    )


def _is_array(leaf: Leaf) -> bool:
    """Whether it is a wide float, and no Python number."""
    return is_wide(leaf.shape.dtype) and not leaf.shape.weak_type


BFLOAT16 = Change(
    "bfloat16", "C", "other values: bfloat16 has 8 bits of precision", _edits, frees_arguments=True
)
KEPT_DTYPE = Change(
    "kept-dtype",
    "C",
    "other values: the returned state is rounded to the dtype that it had as an argument",
    _kept_edits,
    frees_arguments=True,
)
