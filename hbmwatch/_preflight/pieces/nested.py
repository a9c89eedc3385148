"""Loops, branches and checkpoints: their bodies run in pieces too. A body has one stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from hbmwatch._jax import replay
from hbmwatch._jax.scans import scan_inputs
from hbmwatch._preflight.pieces.analysis import Analysis, NoPlace, traced_back
from hbmwatch._preflight.pieces.program import Node, Program
from hbmwatch._preflight.pieces.rules.axis import Placement, Run
from hbmwatch._preflight.pieces.schedule import Known, Schedule, read
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Partial, Piece, Split, State

_REMAT = ("checkpoint", "remat", "remat2")
_NESTED = ("scan", "while", "cond", *_REMAT)


@dataclass(frozen=True, slots=True)
class Body:
    """A body in pieces.

    Attributes:
        states: The states of its outputs.
        lifted: Inputs that are whole and are only taken in one split: better cut before the loop.
        run: Makes the outputs of one piece from the inputs.
    """

    states: tuple[State, ...]
    lifted: dict[int, Split]
    run: Run


class Nested:
    """Places equations that have bodies."""

    def has_body(self, node: Node) -> bool:
        """Whether the node is one of them."""
        return node.name in _NESTED

    def place(self, node: Node, grid: Grid, have: Sequence[State]) -> Placement | str:
        """How to make its outputs in pieces, given what is known of its inputs; or why not."""
        try:
            if node.name == "scan":
                return _Scan(self, node, grid).place(have)
            if node.name == "while":
                return _While(self, node, grid).place(have)
            if node.name == "cond":
                return _place_cond(self, node, grid, have)
            return _place_remat(self, node, grid, have)
        except NoPlace as reason:
            return str(reason)

    def place_back(self, node: Node, grid: Grid, position: int, split: Split) -> Placement | str:
        """How to make one of its outputs in the pieces that are wanted; or why not."""
        have = _inputs_for(self, node, grid, position, split)
        if have is None or all(state is WHOLE for state in have):
            return "the body does not lead back to its inputs"
        way = self.place(node, grid, have)
        if not isinstance(way, str) and way.outs[position] != split:
            return "the body gives other pieces"
        return way

    def body(self, program: Program, grid: Grid, given: Sequence[State]) -> Body:
        """A body in pieces, for the states of its inputs.

        Raises:
            NoPlace: It needs something whole that is split.
        """
        states = dict(zip(program.inputs, given, strict=True))
        analysis = Analysis(program, grid, self, inside=True).run(states)
        outs = tuple(analysis.state[value] for value in program.outputs)
        schedule = Schedule(analysis, zip(program.outputs, outs, strict=True))
        lifted = {
            k: split
            for k, value in enumerate(program.inputs)
            if given[k] is WHOLE and (split := schedule.only_as(value)) is not None
        }
        steps = [step for stage in schedule.stages for step in stage.loop]

        def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
            known: Known = dict(zip(zip(program.inputs, given, strict=True), values, strict=True))
            for step in steps:
                step.run(piece, known)
            return [read(known, key) for key in zip(program.outputs, outs, strict=True)]

        return Body(outs, lifted, run)


def as_state(piece: Piece, array: Any, have: State, want: State) -> Any:
    """A value of a body in the state that the loop carries."""
    if have == want:
        return array
    if have is not WHOLE:
        raise NoPlace(f"the body gives {have}, and the loop carries {want}")
    if isinstance(want, Partial):
        return piece.share(array, want.operation)
    assert isinstance(want, Split)
    return piece.cut(array, want)


def _joined(before: State, after: State, what: str) -> State:
    """The state that holds two values; a whole one can be taken in pieces."""
    if before == after or after is WHOLE:
        return before
    if before is WHOLE:
        return after
    raise NoPlace(f"{what} is {before} and {after}")


def _deeper(state: State) -> State:
    """The state of a row, of that of the stacked rows."""
    return state.at(state.dimension - 1) if isinstance(state, Split) else state


def _stacked(state: State) -> State:
    """The state of the stacked rows, of that of a row."""
    return state.at(state.dimension + 1) if isinstance(state, Split) else state


class _Scan:
    def __init__(self, nested: Nested, node: Node, grid: Grid) -> None:
        self.nested, self.node, self.grid = nested, node, grid
        self.consts, self.carried = scan_inputs(node.params)
        self.program = node.body("jaxpr")

    def place(self, have: Sequence[State]) -> Placement:
        first = self.consts + self.carried
        if any(isinstance(s, Split) and s.dimension == 0 for s in have[first:]):
            raise NoPlace("the steps of a scan come one after another")
        states = [*have[:first], *(_deeper(s) for s in have[first:])]
        body = self.settle(states)
        carry = states[self.consts : first]
        ins = (*states[:first], *(_stacked(s) for s in states[first:]))
        outs = (*carry, *(_stacked(s) for s in body.states[self.carried :]))
        return Placement(ins, outs, self.runner(body, carry))

    def settle(self, states: list[State]) -> Body:
        """The body, once the carried states no longer change. Changes `states`."""
        first = self.consts + self.carried
        for _ in range(2 * len(states) + 2):
            body = self.nested.body(self.program, self.grid, states)
            old = list(states)
            for k in range(self.carried):
                at = self.consts + k
                states[at] = _joined(states[at], body.states[k], "what the scan carries")
            for k, split in body.lifted.items():
                if not self.consts <= k < first:
                    states[k] = split
            if states == old:
                return body
        raise NoPlace("what the scan carries does not settle")

    def runner(self, body: Body, carry: Sequence[State]) -> Run:
        params, consts, carried = self.node.params, self.consts, self.carried

        def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
            def step(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
                made = body.run(piece, [*values[:consts], *state, *row])
                after = [
                    as_state(piece, array, have, want)
                    for array, have, want in zip(made, body.states, carry, strict=False)
                ]
                return after, made[carried:]

            last, rows = lax.scan(
                step,
                list(values[consts : consts + carried]),
                list(values[consts + carried :]),
                length=params["length"],
                reverse=params["reverse"],
                unroll=params["unroll"],
            )
            return [*last, *rows]

        return run


class _While:
    def __init__(self, nested: Nested, node: Node, grid: Grid) -> None:
        self.nested, self.node, self.grid = nested, node, grid
        self.tests, self.consts = node.params["cond_nconsts"], node.params["body_nconsts"]

    def place(self, have: Sequence[State]) -> Placement:
        first = self.tests + self.consts
        states = list(have)
        body = self.settle(states)
        carry, given = states[first:], [*states[: self.tests], *states[first:]]
        if any(isinstance(state, Partial) for state in carry):
            raise NoPlace("a while loop would carry a partial value")
        test = self.nested.body(self.node.body("cond_jaxpr"), self.grid, given)
        if test.states[0] is not WHOLE:
            raise NoPlace("the end of the loop depends on all pieces")
        return Placement(tuple(states), tuple(carry), self.runner(body, test, carry))

    def settle(self, states: list[State]) -> Body:
        """The body, once the carried states no longer change. Changes `states`."""
        first = self.tests + self.consts
        program = self.node.body("body_jaxpr")
        for _ in range(2 * len(states) + 2):
            body = self.nested.body(program, self.grid, states[self.tests :])
            old = list(states)
            for k, state in enumerate(body.states):
                states[first + k] = _joined(states[first + k], state, "what the loop carries")
            for k, split in body.lifted.items():
                if k < self.consts:
                    states[self.tests + k] = split
            if states == old:
                return body
        raise NoPlace("what the loop carries does not settle")

    def runner(self, body: Body, test: Body, carry: Sequence[State]) -> Run:
        first = self.tests + self.consts

        def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
            def go_on(state: list[Any]) -> Any:
                return test.run(piece, [*values[: self.tests], *state])[0]

            def step(state: list[Any]) -> list[Any]:
                made = body.run(piece, [*values[self.tests : first], *state])
                return [
                    as_state(piece, array, before, after)
                    for array, before, after in zip(made, body.states, carry, strict=True)
                ]

            while_loop: Any = lax.while_loop
            return list(while_loop(go_on, step, list(values[first:])))

        return run


def _place_cond(nested: Nested, node: Node, grid: Grid, have: Sequence[State]) -> Placement:
    if have[0] is not WHOLE:
        raise NoPlace("the choice of the branch depends on all pieces")
    programs = [node.body("branches", k) for k in range(len(node.params["branches"]))]
    bodies = [nested.body(program, grid, have[1:]) for program in programs]
    outs: list[State] = list(bodies[0].states)
    for body in bodies[1:]:
        outs = [_joined(a, b, "a branch") for a, b in zip(outs, body.states, strict=True)]

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        def branch(body: Body) -> Any:
            def taken(*args: Any) -> list[Any]:
                made = body.run(piece, args)
                states = zip(made, body.states, outs, strict=True)
                return [as_state(piece, *each) for each in states]

            return taken

        return _chosen(node, values[0], [branch(body) for body in bodies], values[1:])

    return Placement(tuple(have), tuple(outs), run)


def _chosen(node: Node, index: Any, branches: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """What the branch of the index makes, or that of the platform where a cond chooses by it."""
    platforms = node.params.get("branches_platforms")
    if platforms is None:
        return list(lax.switch(index, branches, *values))
    # A switch would lower the branches of other platforms too.
    pairs = list(zip(platforms, branches, strict=True))
    named = {name: branch for names, branch in pairs if names is not None for name in names}
    default = next((branch for names, branch in pairs if names is None), None)
    return list(lax.platform_dependent(*values, default=default, **named))


def _place_remat(nested: Nested, node: Node, grid: Grid, have: Sequence[State]) -> Placement:
    program, states = node.body("jaxpr"), list(have)
    for _ in range(len(states) + 1):
        body = nested.body(program, grid, states)
        if not body.lifted:
            break
        for k, split in body.lifted.items():
            states[k] = split

    def run(piece: Piece, values: Sequence[Any]) -> list[Any]:
        def flat(start: Any, *args: Any) -> list[Any]:
            return body.run(Piece(piece.grid, start, piece.count), args)

        # The equation itself is bound again. A new jax.checkpoint would have no barrier: XLA would
        # then share its work with the forward pass, and keep what should be made again.
        start = lax.convert_element_type(piece.start, "int32")
        closed = jax.make_jaxpr(flat)(start, *values)
        if closed.consts:
            return flat(start, *values)
        changes = {"jaxpr": closed.jaxpr}
        return replay.bind(node.equation, [start, *values], changes, node.callers)

    return Placement(tuple(states), body.states, run)


def _inputs_for(
    nested: Nested, node: Node, grid: Grid, position: int, split: Split
) -> list[State] | None:
    """The states of the inputs that lead to one output in the pieces that are wanted."""
    have: list[State] = [WHOLE for _ in node.inputs]
    parameter, skipped, stacked = "jaxpr", 0, len(node.inputs)
    if node.name == "scan":
        consts, carried = scan_inputs(node.params)
        stacked = consts + carried
        if position >= carried:
            if split.dimension == 0:
                return None
            split = split.at(split.dimension - 1)
        else:
            have[consts + position] = split
    elif node.name == "while":
        parameter, skipped = "body_jaxpr", node.params["cond_nconsts"]
        have[skipped + node.params["body_nconsts"] + position] = split
    program = node.body("branches", 0) if node.name == "cond" else node.body(parameter)
    skipped = 1 if node.name == "cond" else skipped
    offers, _ = traced_back(nested, grid, program.outputs[position], split)
    for k, value in enumerate(program.inputs):
        if value in offers:
            own = offers[value]
            have[skipped + k] = _stacked(own) if skipped + k >= stacked else own
    return have
