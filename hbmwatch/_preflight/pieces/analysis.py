"""Which values are whole, split or partial, and in which stage each is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hbmwatch._preflight.pieces import rules
from hbmwatch._preflight.pieces.program import Node, Program, Value
from hbmwatch._preflight.pieces.rules import partial
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot
from hbmwatch._preflight.pieces.split import WHOLE, Grid, Partial, Split, State

# A value up to this size is cheap to make again, whatever it was made from.
_SMALL_BYTES = 1 << 6
NEVER = 1 << 30
# Each piece holds the whole value.
SAME = Partial("any")


class NoPlace(Exception):
    """The body of a loop cannot run in pieces; the text says why."""


class Bodies(Protocol):
    """Places the equations that have bodies: loops, branches, checkpoints."""

    def has_body(self, node: Node) -> bool:
        """Whether the node is one of them."""

    def place(self, node: Node, grid: Grid, have: Sequence[State]) -> Placement | str:
        """How to make its outputs in pieces, given what is known of its inputs; or why not."""

    def place_back(self, node: Node, grid: Grid, position: int, split: Split) -> Placement | str:
        """How to make one of its outputs in the pieces that are wanted; or why not."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a value was made whole.

    Attributes:
        primitive: The primitive that makes or needs it.
        why: What its rule says.
        nbytes: The size of the largest value that is whole because of it.
    """

    primitive: str
    why: str
    nbytes: int


@dataclass(eq=False, slots=True)
class Analysis:
    """What is known of every value of a program.

    A stage is one loop over the pieces. A value that is whole in stage `s` is known before the loop
    of that stage. A value that is split or partial in stage `s` is made in the loop, and is whole
    from stage `s + 1` on. The body of a loop has one stage only.

    Attributes:
        offers: Whole values that are better taken in pieces, as the arguments of the seed.
        hints: How values on the way from the arguments to the seed should be split.
    """

    program: Program
    grid: Grid
    bodies: Bodies
    inside: bool = False
    offers: dict[Value, Split] = field(default_factory=dict)
    hints: dict[Value, Split] = field(default_factory=dict)
    state: dict[Value, State] = field(default_factory=dict)
    stage: dict[Value, int] = field(default_factory=dict)
    placed: dict[Node, Placement] = field(default_factory=dict)
    # In which stage a cheap value is known whole without its loop, and from how large a value.
    again: dict[Value, tuple[int, int]] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)

    def run(self, given: Mapping[Value, State] | None = None) -> Analysis:
        """Go through the program once.

        Args:
            given: The states of the inputs, which are whole where none is given.

        Raises:
            NoPlace: Inside of a loop, something is needed whole that is not.
        """
        for value in self.program.values:
            if value.node is None:
                self.state[value] = (given or {}).get(value, WHOLE)
                self.stage[value] = 0
                if self.state[value] is WHOLE:
                    self.again[value] = (0, value.nbytes)
        for node in self.program.nodes:
            self._place(node)
        return self

    def whole_from(self, value: Value) -> int:
        """The first stage that knows the value whole."""
        if self.state[value] is WHOLE:
            return self.stage[value]
        if value in self.again:
            return self.again[value][0]
        return NEVER if self.inside else self.stage[value] + 1

    def _place(self, node: Node) -> None:
        have = [self._offered(value) for value in node.inputs]
        found: list[tuple[tuple[int, bool, int, int], Placement]] = []
        failures: list[str] = []
        if not node.has_effects:
            for order, way in enumerate(self._ways(node, have)):
                if isinstance(way, str):
                    failures.append(way)
                    continue
                stage = self._stage_of(node, way)
                if stage < NEVER:
                    found.append(((stage, *self._rank(node, way), order), way))
        if found:
            rank, way = min(found, key=lambda each: each[0])
            self._keep(node, way, rank[0])
        else:
            self._keep_whole(node, have, failures)

    def _offered(self, value: Value) -> State:
        """The state of a value, with what is offered of a whole one."""
        state = self.state[value]
        return self.offers.get(value, WHOLE) if state is WHOLE else state

    def _ways(self, node: Node, have: Sequence[State]) -> Iterator[Placement | str]:
        """All ways to make the node in pieces, given what is known of its inputs."""
        if self.bodies.has_body(node):
            if any(state is not WHOLE for state in have):
                yield self.bodies.place(node, self.grid, have)
            return
        if any(isinstance(state, Partial) for state in have):
            yield partial.place(node, have, inside=self.inside)
        for position, state in enumerate(have):
            if isinstance(state, Split):
                yield rules.place(node, self.grid, Slot(False, position), state, have)

    def _stage_of(self, node: Node, way: Placement) -> int:
        """The first stage that can make the node this way."""
        pairs = list(zip(node.inputs, way.ins, strict=True))
        own = [self.state[v] == s and s is not WHOLE for v, s in pairs]
        stage = max(
            (
                self.stage[v] if same else self.whole_from(v)
                for (v, _), same in zip(pairs, own, strict=True)
            ),
            default=0,
        )
        for (value, state), same in zip(pairs, own, strict=True):
            # The parts of an earlier stage have become a number.
            if same and isinstance(state, Partial) and self.stage[value] < stage:
                return NEVER
        return stage

    def _rank(self, node: Node, way: Placement) -> tuple[bool, int]:
        """What is better: as hinted, then more bytes in pieces."""
        pairs = list(zip(node.outputs, way.outs, strict=True))
        hinted = all(self.hints.get(value, state) == state for value, state in pairs)
        return not hinted, -sum(v.nbytes for v, s in pairs if isinstance(s, Split))

    def _keep(self, node: Node, way: Placement, stage: int) -> None:
        if not self.inside:
            # Made in the loop, though whole in each piece: it is not known before the loop.
            outs = (SAME if state is WHOLE else state for state in way.outs)
            way = replace(way, outs=tuple(outs))
        self.placed[node] = way
        for value, state in zip(node.outputs, way.outs, strict=True):
            self.state[value], self.stage[value] = state, stage
        self._note_stage(node, stage)
        self._note_again(node, stage)

    def _note_stage(self, node: Node, stage: int) -> None:
        """Say so where a node had to wait for a later stage than its pieces."""
        waiting = [
            v for v in node.inputs if self.state[v] is not WHOLE and self.whole_from(v) == stage
        ]
        if waiting and any(self.stage[v] < stage for v in waiting):
            largest = max(value.nbytes for value in waiting)
            self.reasons.append(Reason(node.name, "it needs a value whole: a new stage", largest))

    def _note_again(self, node: Node, stage: int) -> None:
        """Remember values that are known whole without their loop, by cheap equations."""
        if node.name not in rules.CHEAP and not rules.is_same_again(node):
            return
        if any(value not in self.again for value in node.inputs):
            return
        known = [self.again[value] for value in node.inputs]
        since = max((each[0] for each in known), default=0)
        source = max((each[1] for each in known), default=0)
        for value in node.outputs:
            if since <= stage and value.nbytes <= max(source, _SMALL_BYTES):
                self.again[value] = (since, source)

    def _keep_whole(self, node: Node, have: Sequence[State], failures: Sequence[str]) -> None:
        stage = max((self.whole_from(value) for value in node.inputs), default=0)
        why = "; ".join(dict.fromkeys(failures)) or "it has an effect"
        if stage >= NEVER:
            raise NoPlace(f"{node.name} in the body: {why}")
        if any(state is not WHOLE for state in have):
            sizes = [v.nbytes for v in (*node.inputs, *node.outputs)]
            self.reasons.append(Reason(node.name, why, max(sizes)))
        for value in node.outputs:
            self.state[value], self.stage[value] = WHOLE, stage
            # Bits that are better made piece by piece make nothing whole that follows from them.
            if node.name != "random_bits" or value not in self.offers:
                self.again[value] = (stage, value.nbytes)


def traced_back(
    bodies: Bodies, grid: Grid, value: Value, split: Split
) -> tuple[dict[Value, Split], dict[Value, Split]]:
    """What to offer so that a value is made in pieces, and how the values on the way are split."""
    offers: dict[Value, Split] = {}
    hints: dict[Value, Split] = {}
    fills: dict[Value, Split] = {}
    start, todo = value, [(value, split)]
    while todo:
        value, split = todo.pop()
        if value in hints:
            continue
        hints[value] = split
        way = _way_back(bodies, grid, value, split)
        if way is None:
            offers[value] = split
            continue
        assert value.node is not None
        if value.node.name == "random_bits" and WHOLE in way.ins:
            offers[value] = split  # its pieces come from a whole key
        sources = [
            (source, state)
            for source, state in zip(value.node.inputs, way.ins, strict=True)
            if isinstance(state, Split)
        ]
        todo += sources
        fills |= {} if sources else {value: split}
    # It comes from no argument: then the pieces begin with what fills arrays with constants, or
    # with the value itself.
    return offers or fills or {start: hints[start]}, hints


def _way_back(bodies: Bodies, grid: Grid, value: Value, split: Split) -> Placement | None:
    node = value.node
    if node is None or node.has_effects:
        return None
    position = node.outputs.index(value)
    have: list[State] = [WHOLE for _ in node.inputs]
    if bodies.has_body(node):
        way = bodies.place_back(node, grid, position, split)
    else:
        way = rules.place(node, grid, Slot(True, position), split, have)
    return None if isinstance(way, str) else way
