"""Run the step in pieces along one dimension, one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange, names
from hbmwatch._preflight.changes.change import NO_TIME, Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.changes.sources import first_line_of
from hbmwatch._preflight.pieces import Refused, Rewritten, Seed, rewrite, seeds
from hbmwatch._preflight.verdicts import Fit

COUNTS = (4, 16, 64, 256, 1024)
# How many cuts are rewritten for each number of pieces, and how many of them are compiled.
_MOST_SEEDS = 20
_MOST_COMPILES = 2
# More pieces are tried only while each step gains this share of the peak.
LEAST_GAIN = 0.03
# A cut is as good as any if its estimate is near this many times what n pieces can reach.
_NEARLY_BEST = 1.25
# By the estimate, so far above the limit that more pieces are tried at once. An estimate that does
# not fall by the pieces to this share has missed what takes the memory, as what a TPU pads.
_FAR = 1.5
_MOST_SHARE = 0.5
_MOST_CPU_S = 8.0
# Values of which part of the largest one are made again in each loop: first few, then more. A TPU
# pads a value with a short last dimension to up to 128 times its size.
_REMADE = (8, 128)
_TILE_ROWS = 8
TOGETHER = {True: "add up the sums of the pieces", False: "put the results together"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InPieces(Edit):
    """The program in pieces along the dimension of a seed."""

    numbers_values = True

    seed: Seed
    pieces: int
    strided: bool
    along: str
    adds: bool
    remakes: int = 0

    def in_pieces(self, pieces: int) -> InPieces:
        """The same cut into another number of pieces."""
        return dataclasses.replace(self, **_counted(self.along, pieces, self.adds, self.remakes))

    def on(self, call: Call) -> Call:
        """The call that runs in pieces."""
        try:
            found = _rewritten(call, self.seed, self.pieces, self.strided, self.remakes)
        except Refused as refused:
            raise NothingToChange(str(refused)) from refused
        return call.rewritten(found.jaxpr)


def _rewritten(call: Call, seed: Seed, pieces: int, strided: bool, remakes: int = 0) -> Rewritten:
    """The program in pieces.

    Raises:
        Refused: It cannot run in these pieces.
    """
    return rewrite(call.jaxpr, seed, pieces, strided=strided, donated=call.donated, remakes=remakes)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """More and more pieces, until they fit or gain nothing; then half as many as fitted."""
    strided = call.mesh is not None
    try:
        cuts = seeds(call.jaxpr, most=_MOST_SEEDS)
    except Refused as refused:
        raise NothingToChange(str(refused)) from refused
    lowest: int | None = facts.peak_bytes if facts is not None else None
    refusals: list[str] = []
    found: list[tuple[float, InPieces]] = []
    far: list[tuple[float, InPieces]] = []
    too_few = 1  # so many pieces are too few
    for count in COUNTS:
        best = [edit.seed for _, edit in found]
        order = sorted(cuts, key=lambda seed: best.index(seed) if seed in best else len(best))
        found = _ranked(call, order, count, strided, refusals, asked.until)
        if not found and count == COUNTS[0]:
            raise NothingToChange(refusals[0] if refusals else "no dimension can be cut")
        if found and count < COUNTS[-1] and _is_far(found[0][0], facts, asked.limit_bytes):
            far = found
            continue
        found, far = found or far, []
        peaks: list[int] = []
        more = _with_more_remade(call, found[0]) if found else []
        for _, edit in [*found[:1], *more, *found[1:_MOST_COMPILES]]:
            fit = yield edit
            if fit is not None and fit.fits:
                yield from _fewer(edit, too_few)
                return
            if fit is not None and fit.peak_bytes is not None:
                peaks.append(fit.peak_bytes)
        if lowest is not None and (not peaks or min(peaks) > (1 - LEAST_GAIN) * lowest):
            return
        lowest, too_few = min(peaks, default=lowest), count


def _fewer(edit: InPieces, too_few: int) -> Generator[InPieces, Fit | None]:
    """Half as many pieces, as long as they fit and are not known to be too few."""
    while edit.pieces // 2 > too_few:
        edit = edit.in_pieces(edit.pieces // 2)
        fit = yield edit
        if fit is None or not fit.fits:
            return


def _is_far(share: float, facts: ProgramFacts | None, limit: int | None) -> bool:
    """Whether this share of the measured peak is still far more than the limit."""
    if facts is None or limit is None or share > _MOST_SHARE:
        return False
    return share * facts.peak_bytes > _FAR * limit


def _ranked(
    call: Call,
    cuts: Sequence[Seed],
    count: int,
    strided: bool,
    refusals: list[str],
    until: float = math.inf,
) -> list[tuple[float, InPieces]]:
    """The cuts into so many pieces that seem to need the least memory, the best first.

    With each comes its estimate, as a share of that of the whole program.
    """
    most_cpu_s = time.process_time() + _MOST_CPU_S
    whole = max(1, estimated_peak_bytes(call.jaxpr))
    kept = sum(leaf.nbytes for leaf in (*call.arguments, *call.outputs))
    found: list[tuple[int, int, InPieces]] = []
    seen: set[tuple[Any, ...]] = set()
    same: set[tuple[int, int]] = set()
    for number, seed in enumerate(cuts):
        # A shorter dimension is cut into its elements, once.
        if seed.size * COUNTS[0] <= count or (seed.value, seed.dimension) in same:
            continue
        if time.monotonic() > until:
            refusals.insert(0, NO_TIME)
            break
        if found and time.process_time() > most_cpu_s:
            break
        try:
            ways = _ways(call, seed, even_pieces(seed.size, count), strided)
        except Refused as refused:
            refusals.append(str(refused))
            continue
        # In one loop over the pieces, all values that are cut with the seed make the same cut.
        same |= ways[0].cut if ways[0].stages == 1 else set()
        for remakes, rewritten in zip((0, _REMADE[0]), ways, strict=False):
            peak = estimated_peak_bytes(rewritten.jaxpr)
            alike = (peak, rewritten.stages, rewritten.in_pieces_bytes, rewritten.arguments)
            if (rewritten.in_pieces_bytes or peak < whole) and alike not in seen:
                seen.add(alike)
                edit = _edit(call, seed, rewritten, strided, remakes)
                found.append((peak, number, edit))
        least = kept + max(0, whole - kept) // ways[0].pieces
        if found and ways[0].stages == 1 and found[-1][0] <= _NEARLY_BEST * least:
            break
    return [(peak / whole, edit) for peak, _, edit in sorted(found, key=lambda each: each[:2])]


def _ways(call: Call, seed: Seed, pieces: int, strided: bool) -> list[Rewritten]:
    """The program in pieces; if that takes several loops, also with large values made in each.

    Raises:
        Refused: It cannot run in these pieces.
    """
    made = _rewritten(call, seed, pieces, strided)
    if made.stages > 1:
        with contextlib.suppress(Refused):
            return [made, _rewritten(call, seed, pieces, strided, _REMADE[0])]
    return [made]


def even_pieces(size: int, count: int) -> int:
    """How many pieces to cut a dimension into: about `count`, so that it is divided evenly.

    Pieces of whole tiles of a TPU come first, because they can be put together without a copy.
    """
    even = [n for n in range(count, min(2 * count, size + 1)) if size % n == 0]
    tiled = (n for n in even if size // n % _TILE_ROWS == 0)
    return next(tiled, even[0] if even else min(count, size))


def _with_more_remade(call: Call, best: tuple[float, InPieces]) -> list[tuple[float, InPieces]]:
    """The cut that makes large values again in each loop, with smaller ones made again too."""
    share, edit = best
    if edit.remakes != _REMADE[0]:
        return []
    more = dataclasses.replace(
        edit, remakes=_REMADE[1], **_counted(edit.along, edit.pieces, edit.adds, _REMADE[1])
    )
    try:
        peak = estimated_peak_bytes(more.on(call).jaxpr)
    except NothingToChange:
        return []
    least = (1 - LEAST_GAIN) * share * estimated_peak_bytes(call.jaxpr)
    return [(share, more)] if peak <= least else []


def _edit(call: Call, seed: Seed, rewritten: Rewritten, strided: bool, remakes: int) -> InPieces:
    """The edit; it is described by the arguments that are cut, or else by the value."""
    first = len(call.constants)
    where = first_line_of(call.jaxpr, seed.primitive, seed.nbytes)
    cut = [(call.arguments[i - first], d) for i, d in rewritten.arguments if i >= first]
    line = f" at {where[0]}" if where else ""
    along = f"dimension {seed.dimension} of the result of {seed.primitive}{line}"
    if cut:
        dimensions = dict.fromkeys(d for _, d in cut)
        numbered = ", ".join(map(str, dimensions))
        along = f"dimension {numbered} of {names([leaf for leaf, _ in cut])}"
    return InPieces(
        along=along,
        where=where,
        seed=seed,
        strided=strided,
        remakes=remakes,
        **_counted(along, rewritten.pieces, rewritten.adds, remakes),
    )


def _counted(along: str, pieces: int, adds: bool, remakes: int) -> dict[str, Any]:
    """What says how many pieces there are."""
    values = "large values" if remakes == _REMADE[0] else "large and medium values"
    again = f"; in each loop, compute the {values} again that it needs" if remakes else ""
    made = f", {values} made again in each loop" if remakes else ""
    return {
        "what": f"{pieces} pieces along {along}" + made,
        "code": f"compute in {pieces} pieces along {along}, one after another (jax.lax.scan or "
        f"jax.lax.map), and {TOGETHER[adds]}{again}",
        "cost": pieces,
        "pieces": pieces,
        "adds": adds,
    }


PIECES = Change(
    "pieces",
    "B",
    "the same values up to rounding: sums over the pieces add up in another order, and "
    "floats narrower than float32 add up in float32",
    _edits,
    repeats=True,
    stacks=True,
)
