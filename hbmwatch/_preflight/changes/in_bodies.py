"""Run the bodies of loops and of checkpoints in pieces, where what a body makes is too large.

A body that is split with the whole program has to run in one loop over the pieces. Here it is a
program of its own, so that it may have several.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange, nbytes
from hbmwatch._preflight.changes.change import NO_TIME, Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.changes.in_pieces import COUNTS, LEAST_GAIN, TOGETHER, even_pieces
from hbmwatch._preflight.changes.sources import first_line_of
from hbmwatch._preflight.pieces import Refused, Rewritten, Seed, rewrite, seeds

# The parameter that holds the body of each loop, and of each checkpoint.
_HELD_IN = {
    "scan": "jaxpr",
    "while": "body_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
# A body is cut if its largest value is at least this part of the largest of all.
_LEAST_PART = 8
_MOST_BODIES = 6
_MOST_SEEDS = 12
# A body is cut once more while its largest value is at least this part of what it was.
_STILL_LARGE = 0.5
_MOST_CUTS = 3
# How many choices of dimensions are compiled for each number of pieces.
_MOST_COMPILES = 2
# Of cuts with about the same estimate, the one with the fewest loops is better.
_ABOUT_THE_SAME = 1.5


class Place(NamedTuple):
    """A jaxpr in an equation: the number of the equation, its parameter, and which of several."""

    equation: int
    parameter: str
    position: int | None


Path = tuple[Place, ...]


class Cut(NamedTuple):
    """One body in pieces, along one dimension after another."""

    path: Path
    seeds: tuple[tuple[Seed, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodiesInPieces(Edit):
    """The program with some of its bodies in pieces, inner bodies before those around them."""

    numbers_values = True

    cuts: tuple[Cut, ...]
    strided: bool

    def on(self, call: Call) -> Call:
        """The call with these bodies."""
        closed = call.jaxpr
        try:
            for cut in self.cuts:
                body = _closed(_body_at(closed, cut.path))
                for seed, pieces in cut.seeds:
                    body = _rewritten(body, seed, pieces, self.strided).jaxpr
                closed = _with_body(closed, cut.path, body)
        except Refused as refused:
            raise NothingToChange(str(refused)) from refused
        return call.rewritten(closed)


def _rewritten(body: Any, seed: Seed, count: int, strided: bool) -> Rewritten:
    """A body in pieces.

    Raises:
        Refused: It cannot run in these pieces.
    """
    made = rewrite(body, seed, count, strided=strided)
    if made.jaxpr.consts or made.jaxpr.effects:
        raise Refused("the pieces of the body need constants of their own, or have effects")
    return made


# --- bodies by their places -----------------------------------------------------------------------


def _held(jaxpr: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The bodies of all loops and checkpoints, outer ones first, with the ways to them."""
    for number, equation in enumerate(jaxpr.eqns):
        for place, body in _bodies(number, equation):
            if _HELD_IN.get(equation.primitive.name) == place.parameter:
                yield (*path, place), _closed(body)
            yield from _held(_open(body), (*path, place))


def _bodies(number: int, equation: Any) -> Iterator[tuple[Place, Any]]:
    for name, parameter in equation.params.items():
        if isinstance(parameter, (Jaxpr, ClosedJaxpr)):
            yield Place(number, name, None), parameter
        elif isinstance(parameter, (tuple, list)):
            for position, each in enumerate(parameter):
                if isinstance(each, (Jaxpr, ClosedJaxpr)):
                    yield Place(number, name, position), each


def _open(body: Any) -> Any:
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def _closed(body: Any) -> Any:
    return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


def _body_at(body: Any, path: Path) -> Any:
    for place in path:
        body = _open(body).eqns[place.equation].params[place.parameter]
        body = body if place.position is None else body[place.position]
    return body


def _with_body(body: Any, path: Path, new: Any) -> Any:
    """A jaxpr with another one at the end of a path."""
    if not path:
        return new if isinstance(body, ClosedJaxpr) else new.jaxpr
    (place, *rest), jaxpr = path, _open(body)
    equation = jaxpr.eqns[place.equation]
    old = equation.params[place.parameter]
    if place.position is None:
        made: Any = _with_body(old, tuple(rest), new)
    else:
        parts = list(old)
        parts[place.position] = _with_body(parts[place.position], tuple(rest), new)
        made = type(old)(parts)
    equations = list(jaxpr.eqns)
    equations[place.equation] = equation.replace(params={**equation.params, place.parameter: made})
    jaxpr = jaxpr.replace(eqns=equations)
    return body.replace(jaxpr=jaxpr) if isinstance(body, ClosedJaxpr) else jaxpr


def _largest(body: Any) -> int:
    """The size of the largest value that a body makes, apart from those in other such bodies."""
    sizes = [0]
    for equation in _open(body).eqns:
        sizes += [nbytes(v.aval) for v in equation.outvars if hasattr(v.aval, "shape")]
        if equation.primitive.name not in _HELD_IN:
            sizes += [_largest(inner) for _, inner in _bodies(0, equation)]
    return max(sizes)


# --- the edits ------------------------------------------------------------------------------------


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """More and more pieces, each body along the dimensions that seem to need the least memory."""
    bodies = [(_largest(body), path, body) for path, body in _held(call.jaxpr.jaxpr)]
    most = max((size for size, _, _ in bodies), default=0)
    if not most:
        raise NothingToChange("the program has no loop and no checkpoint")
    large = [(path, body) for size, path, body in bodies if size * _LEAST_PART >= most]
    lowest = facts.peak_bytes if facts is not None else None
    for count in COUNTS:
        edits = _choices(call, large[:_MOST_BODIES], count, asked.until)
        if not edits and count == COUNTS[0]:
            is_late = time.monotonic() > asked.until
            none = "no body of a loop or a checkpoint can run in pieces"
            raise NothingToChange(NO_TIME if is_late else none)
        peaks = []
        for edit in edits:
            fit = yield edit
            if fit is not None and fit.fits:
                return
            if fit is not None and fit.peak_bytes is not None:
                peaks.append(fit.peak_bytes)
        if not peaks or (lowest is not None and min(peaks) > (1 - LEAST_GAIN) * lowest):
            return
        lowest = min(peaks)


def _choices(
    call: Call, bodies: list[tuple[Path, Any]], count: int, until: float
) -> list[BodiesInPieces]:
    """The bodies in so many pieces: each along its best dimensions, then along its second best.

    What lies in a body is cut before it: a body in pieces has other equations, so that no path
    leads through it any more.
    """
    strided = call.mesh is not None
    paths = sorted((path for path, _ in bodies), key=lambda path: -len(path))
    known: dict[int, tuple[Any, list[Way]]] = {}  # the body is kept, so that no other gets its id
    edits: list[BodiesInPieces] = []
    for choice in range(_MOST_COMPILES):
        closed, chosen = call.jaxpr, []
        for path in paths:
            body = _body_at(closed, path)
            if id(body) not in known:
                known[id(body)] = body, _ways(_closed(body), count, strided, until)
            _, ways = known[id(body)]
            if ways:
                way = ways[min(choice, len(ways) - 1)]
                chosen.append((path, way))
                closed = _with_body(closed, path, way.body)
        edit = _edit(chosen, count, strided) if chosen else None
        edits += [edit] if edit is not None and edit not in edits else []
    return edits


class Way(NamedTuple):
    """How a body can be cut, what it then is, where, and whether the pieces are added up."""

    body: Any
    seeds: tuple[tuple[Seed, int], ...]
    names: tuple[str, ...]
    where: tuple[str, ...]
    adds: bool


def _edit(chosen: Sequence[tuple[Path, Way]], count: int, strided: bool) -> BodiesInPieces:
    what = " and ".join(dict.fromkeys(name for _, way in chosen for name in way.names))
    lines = dict.fromkeys(line for _, way in chosen for line in way.where)
    adds = any(way.adds for _, way in chosen)
    return BodiesInPieces(
        what=f"{what}, inside loops and checkpoints",
        code=f"inside loops and checkpoints, compute in {what}, one after another (jax.lax.scan "
        f"or jax.lax.map), and {TOGETHER[adds]}",
        where=tuple(lines),
        cost=count,
        cuts=tuple(Cut(path, way.seeds) for path, way in chosen),
        strided=strided,
    )


def _ways(body: Any, count: int, strided: bool, until: float) -> list[Way]:
    """The best ways to cut a body; each is cut again where other values are still large."""
    ways, whole = [], estimated_peak_bytes(body, fused=True)
    for seed, pieces, made in _ranked(body, count, strided, until)[:_MOST_COMPILES]:
        steps, largest, adds = [(body, seed, pieces)], _largest(body), made.adds
        while len(steps) < _MOST_CUTS and _largest(made.jaxpr) >= _STILL_LARGE * largest:
            again = _ranked(made.jaxpr, count, strided, until)
            if not again:
                break
            last, (seed, pieces, made) = made.jaxpr, again[0]
            steps.append((last, seed, pieces))
            adds |= made.adds
        if estimated_peak_bytes(made.jaxpr, fused=True) >= whole:
            continue
        ways.append(
            Way(
                made.jaxpr,
                tuple((seed, pieces) for _, seed, pieces in steps),
                tuple(f"{pieces} pieces along {_name(of, seed)}" for of, seed, pieces in steps),
                tuple(line for of, seed, _ in steps for line in _where(of, seed)),
                adds,
            )
        )
    return ways


def _ranked(
    body: Any, count: int, strided: bool, until: float
) -> list[tuple[Seed, int, Rewritten]]:
    """The cuts of a body whose estimate is no higher than without one, the best first.

    Another value of the same size may keep it as high until that one is cut too.
    """
    found: list[tuple[int, Seed, int, Rewritten]] = []
    try:
        cuts = seeds(body, most=_MOST_SEEDS)
    except Refused:
        return []
    whole = estimated_peak_bytes(body, fused=True)
    for seed in cuts:
        pieces = even_pieces(seed.size, count)
        if time.monotonic() > until:
            break
        try:
            made = _rewritten(body, seed, pieces, strided)
        except Refused:
            continue
        peak = estimated_peak_bytes(made.jaxpr, fused=True)
        if peak <= whole:
            found.append((peak, seed, pieces, made))
    most = _ABOUT_THE_SAME * min((each[0] for each in found), default=0)
    found.sort(key=lambda e: (e[0] > most, e[3].stages, -e[3].in_pieces_bytes, e[0]))
    return [(seed, pieces, made) for _, seed, pieces, made in found]


def _where(body: Any, seed: Seed) -> tuple[str, ...]:
    return first_line_of(body, seed.primitive, seed.nbytes)


def _name(body: Any, seed: Seed) -> str:
    """What is cut, for a sentence."""
    if seed.primitive is None:
        return f"dimension {seed.dimension} of input {seed.argument} of the body"
    where = _where(body, seed)
    line = f" at {where[0]}" if where else ""
    return f"dimension {seed.dimension} of the result of {seed.primitive}{line}"


BODIES = Change(
    "inner-pieces",
    "B",
    "the same values up to rounding: sums over the pieces add up in another order, and "
    "floats narrower than float32 add up in float32",
    _edits,
)
