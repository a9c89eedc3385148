"""One program rewritten to run in pieces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax

from hbmwatch._preflight.pieces.analysis import Analysis, NoPlace, Reason, traced_back
from hbmwatch._preflight.pieces.nested import Nested
from hbmwatch._preflight.pieces.program import Program, flatten
from hbmwatch._preflight.pieces.running import run, typed
from hbmwatch._preflight.pieces.schedule import Schedule
from hbmwatch._preflight.pieces.seeds import Seed
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Partial, Refused, Split, cut_along

# How often to go through the program again with what the last time wanted in pieces.
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program that runs in pieces.

    Attributes:
        jaxpr: The closed jaxpr. Its inputs and outputs are those of the original, in the same order
            and of the same types, so that donation and shardings stay as they are.
        stages: How many loops over the pieces it has.
        pieces: How many pieces each loop runs.
        reasons: Why values were made whole.
        in_pieces_bytes: How many bytes of the original's values are made in pieces only.
        adds: Whether values of the pieces are added up.
        arguments: The flat arguments that are cut for it, each with its dimension.
        cut: The values of the flat program that are in pieces, each with its dimension.
    """

    jaxpr: Any
    stages: int
    pieces: int
    reasons: tuple[Reason, ...]
    in_pieces_bytes: int
    adds: bool
    arguments: tuple[tuple[int, int], ...] = ()
    cut: frozenset[tuple[int, int]] = frozenset()


def rewrite(
    closed: Any,
    seed: Seed,
    n: int,
    *,
    strided: bool = False,
    donated: Collection[int] = (),
    remakes: int = 0,
) -> Rewritten:
    """The program in `n` pieces along the dimension of a seed.

    Args:
        closed: The jaxpr of the step, after differentiation, as `step.trace(*args).jaxpr` gives it.
        seed: What to cut, from `seeds(closed)`.
        n: How many pieces. Where it does not divide the dimension, the last piece is shorter.
        strided: Take every n-th element, not n blocks. A sharded dimension needs it: a block would
            lie on one device.
        donated: The flat arguments that are donated.
        remakes: A value that several loops need and that is at least this part of the largest one
            (8: an eighth) is made in each of them, and never kept whole: less memory for more
            work. 0 makes none again.

    Raises:
        Refused: The program cannot run in these pieces.
    """
    program, bodies = flatten(closed), Nested()
    grid, split = cut_along(seed.size, seed.dimension, n, strided=strided)
    analysis, schedule = _analyzed(program, bodies, grid, seed, split, remakes)
    loops = [stage for stage in schedule.stages if stage.exports]
    if not loops:
        raise Refused("nothing would run in pieces")

    def rewritten(*args: Any) -> list[Any]:
        made = run(analysis, schedule, args, donated)
        return [typed(array, aval) for array, aval in zip(made, closed.out_avals, strict=True)]

    jaxpr = jax.make_jaxpr(rewritten)(*(_shaped(aval) for aval in closed.in_avals))
    made = {v for stage in schedule.stages for v in stage.exports}
    whole = {v for stage in schedule.stages for step in stage.before for v in _made_by(step)}
    saved = sum(
        v.nbytes for stage in loops for step in stage.loop for v in _made_by(step) - made - whole
    )
    pieces = grid.full + (grid.rest > 0)
    offered = ((i, analysis.offers.get(v)) for i, v in enumerate(program.inputs))
    arguments = tuple((i, split.dimension) for i, split in offered if split is not None)
    states = [(v, analysis.state[v]) for stage in loops for s in stage.loop for v in _made_by(s)]
    states += [(v, analysis.offers.get(v, WHOLE)) for v in program.inputs]
    cut = frozenset(
        (v.index, s.dimension)
        for v, s in states
        if isinstance(s, Split) and s.at(split.dimension) == split
    )
    adds = Partial("sum") in {analysis.state[v] for v in made}
    reasons = tuple(analysis.reasons)
    return Rewritten(jaxpr, len(loops), pieces, reasons, saved, adds, arguments, cut)


def _analyzed(
    program: Program, bodies: Nested, grid: Grid, seed: Seed, split: Split, remakes: int
) -> tuple[Analysis, Schedule]:
    """Go through the program until what is wanted in pieces is made in pieces."""
    value = next(value for value in program.values if value.index == seed.value)
    offers, hints = traced_back(bodies, grid, value, split)
    for _ in range(_ROUNDS):
        analysis = Analysis(program, grid, bodies, offers=dict(offers), hints=dict(hints))
        try:
            analysis.run()
        except NoPlace as reason:
            raise Refused(str(reason)) from reason
        outputs = ((v, WHOLE) for v in program.outputs)
        schedule = Schedule(analysis, outputs, remakes=remakes)
        before = len(hints)
        for wanted, state in schedule.cuts.items():
            if wanted.node is not None and isinstance(state, Split) and wanted not in hints:
                more_offers, more_hints = traced_back(bodies, grid, wanted, state)
                offers = {**more_offers, **offers}
                hints = {**more_hints, **hints}
        if len(hints) == before:
            break
    return analysis, schedule


def _made_by(step: Any) -> set[Any]:
    node = getattr(step, "node", None)
    return set(node.outputs) if node is not None else set()


def _shaped(aval: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)
