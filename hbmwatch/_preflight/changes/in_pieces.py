"""Run the step in pieces along one dimension, one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.changes.sources import source_of
from hbmwatch._preflight.pieces import Refused, Seed, rewrite, seeds

_COUNTS = (4, 16, 64, 256, 1024)
# How many cuts are rewritten for each number of pieces, and how many of them are compiled.
_MOST_SEEDS = 10
_MOST_COMPILES = 2
# More pieces are tried only while each step gains this share of the peak.
_LEAST_GAIN = 0.03
_MOST_CPU_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InPieces(Edit):
    """The program in pieces along the dimension of a seed."""

    seed: Seed
    pieces: int
    strided: bool

    def on(self, call: Call) -> Call:
        """The call that runs in pieces."""
        try:
            found = rewrite(call.jaxpr, self.seed, self.pieces, strided=self.strided)
        except Refused as refused:
            raise NothingToChange(str(refused)) from refused
        return call.rewritten(found.jaxpr)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """More and more pieces, until they fit or gain nothing; then half as many as fitted."""
    strided = call.mesh is not None
    try:
        cuts = seeds(call.jaxpr, most=_MOST_SEEDS)
    except Refused as refused:
        raise NothingToChange(str(refused)) from refused
    lowest: int | None = None
    refusals: list[str] = []
    for count in _COUNTS:
        found = _ranked(call, cuts, count, strided, refusals)
        peaks: list[int] = []
        for edit in found[:_MOST_COMPILES]:
            fit = yield edit
            if fit is not None and fit.fits:
                yield from _fewer(call, edit)
                return
            if fit is not None and fit.peak_bytes is not None:
                peaks.append(fit.peak_bytes)
        if lowest is not None and (not peaks or min(peaks) > (1 - _LEAST_GAIN) * lowest):
            return
        if not found and lowest is None:
            break
        lowest = min(peaks, default=lowest)
    if lowest is None:
        reason = refusals[0] if refusals else "no dimension is worth a cut"
        raise NothingToChange(reason)


def _fewer(call: Call, edit: InPieces) -> Iterator[InPieces]:
    """Half as many pieces, because the numbers that are tried are four times apart."""
    half = edit.pieces // 2
    if half > 1:
        yield _edit(call, edit.seed, half, edit.strided)


def _ranked(
    call: Call, cuts: tuple[Seed, ...], count: int, strided: bool, refusals: list[str]
) -> list[InPieces]:
    """The cuts into so many pieces that seem to need the least memory, the best first."""
    until = time.process_time() + _MOST_CPU_S
    whole = estimated_peak_bytes(call.jaxpr)
    found: list[tuple[int, int, InPieces]] = []
    for number, seed in enumerate(cuts):
        if seed.size < count or (found and time.process_time() > until):
            continue
        edit = _edit(call, seed, count, strided)
        try:
            peak = estimated_peak_bytes(edit.on(call).jaxpr)
        except NothingToChange as refused:
            refusals.append(str(refused))
            continue
        if peak < whole:
            found.append((peak, number, edit))
    return [edit for _, _, edit in sorted(found, key=lambda each: each[:2])]


def _edit(call: Call, seed: Seed, pieces: int, strided: bool) -> InPieces:
    if seed.argument is not None and seed.argument >= len(call.constants):
        value = call.arguments[seed.argument - len(call.constants)].path
        where: tuple[str, ...] = ()
    else:
        value = f"the {seed.primitive} of {seed.nbytes} bytes"
        where = source_of(call.jaxpr, seed.primitive, seed.nbytes)
        value = f"the result of {seed.primitive}" + (f" at {where[0]}" if where else "")
    return InPieces(
        what=f"{pieces} pieces of {value}, dimension {seed.dimension}",
        code=f"compute in {pieces} pieces along dimension {seed.dimension} of {value} "
        "(jax.lax.map over the pieces, or accumulated gradients)",
        where=where,
        seed=seed,
        pieces=pieces,
        strided=strided,
    )


PIECES = Change(
    "pieces",
    "B",
    "the same values up to rounding: sums over the pieces add up in another order, narrow floats "
    "in float32",
    _edits,
    repeats=True,
)
