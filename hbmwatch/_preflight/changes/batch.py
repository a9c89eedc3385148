"""Halve the batch."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange, names
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits

# Halved this many times at most.
_MOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorten(Edit):
    """A part of the first dimension of some arguments."""

    numbers_values = True

    arguments: tuple[int, ...]
    parts: int

    def on(self, call: Call) -> Call:
        """The step traced again with a smaller batch."""
        shapes = [leaf.shape for leaf in call.arguments]
        for i in self.arguments:
            old = shapes[i]
            shorter = (max(1, old.shape[0] // self.parts), *old.shape[1:])
            shapes[i] = jax.ShapeDtypeStruct(shorter, old.dtype, sharding=old.sharding)
        return call.retraced(shapes)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    arguments = facts.batch.arguments if facts is not None else ()
    advised = {argument.leaf.path for argument in arguments if argument.leaf is not None}
    chosen = tuple(i for i, leaf in enumerate(call.arguments) if leaf.path in advised)
    if not chosen:
        raise NothingToChange("no argument has an identifiable batch dimension")
    leaves = [call.arguments[i] for i in chosen]
    shortest = min(leaf.shape.shape[0] for leaf in leaves)
    for times in range(1, _MOST + 1):
        parts = 2**times
        if parts > shortest and times > 1:
            return
        done = "halving" if parts == 2 else f"taking 1/{parts} of"
        fit = yield Shorten(
            what=f"{done} the batch of {names(leaves)}",
            code=f"pass 1/{parts} of the batch: {names(leaves)}",
            unapplied="the batch is what the caller passes: pass a smaller one",
            arguments=chosen,
            parts=parts,
        )
        if fit is None or fit.fits:
            return


HALF_BATCH = Change(
    "half-batch",
    "C",
    "other values: each step sees fewer examples",
    _edits,
    frees_arguments=True,
    repeats=True,
)
