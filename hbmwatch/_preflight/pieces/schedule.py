"""What to do to make the outputs: which equations whole, and which in the loop of which stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces import rules
from hbmwatch._preflight.pieces.analysis import Analysis
from hbmwatch._preflight.pieces.program import Node, Value, constant
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot, checked
from hbmwatch._preflight.pieces.split import WHOLE, Partial, Piece, Refused, Split, State

Key = tuple[Value, State]
Known = dict[Key, Any]
# The place of what is needed whole: before the loops, not in one of them.
_BEFORE = -1
# All loops together do at most so many times the equations of the program.
_MOST_WORK = 4


@dataclass(frozen=True, slots=True)
class Whole:
    """An equation done whole."""

    node: Node

    def run(self, piece: Piece | None, known: Known) -> None:
        """Do it, and keep the outputs in `known`."""
        values = [read(known, (value, WHOLE)) for value in self.node.inputs]
        made = replay.bind(self.node.equation, values, {}, self.node.callers)
        known.update(zip(((v, WHOLE) for v in self.node.outputs), made, strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """An equation done for one piece."""

    node: Node
    way: Placement

    def run(self, piece: Piece | None, known: Known) -> None:
        """Do it, and keep the outputs in `known`."""
        assert piece is not None
        values = [read(known, key) for key in zip(self.node.inputs, self.way.ins, strict=True)]
        made = checked(self.node, self.way, piece, values)
        known.update(zip(zip(self.node.outputs, self.way.outs, strict=True), made, strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """A whole value, taken in pieces: cut, or as a part of a sum."""

    value: Value
    state: State

    def run(self, piece: Piece | None, known: Known) -> None:
        """Do it, and keep the piece in `known`."""
        assert piece is not None
        array = read(known, (self.value, WHOLE))
        if isinstance(self.state, Partial):
            known[self.value, self.state] = piece.share(array, self.state.operation)
        elif isinstance(self.state, Split):
            known[self.value, self.state] = piece.cut(array, self.state)


Step = Whole | Part | Cut


def read(known: Known, key: Key) -> Any:
    """What is known of a value in one state."""
    value, state = key
    return constant(value) if state is WHOLE and value.known is not None else known[key]


@dataclass(eq=False, slots=True)
class Stage:
    """What to do before the loop and in the loop, and which values of the loop are needed whole."""

    before: list[Step] = field(default_factory=list)
    loop: list[Step] = field(default_factory=list)
    exports: list[Value] = field(default_factory=list)


class Schedule:
    """The steps of all stages. They are found from the last equation to the first.

    Attributes:
        stages: The stages, in order.
        cuts: Whole values that are taken in pieces, and how.
    """

    def __init__(self, analysis: Analysis, outputs: Iterable[Key], *, remakes: int = 0) -> None:
        """Find the steps.

        Args:
            analysis: What is known of the values.
            outputs: What is needed.
            remakes: Make values once more in later stages, in place of keeping them whole, if they
                are at least this part of the largest one (8: an eighth); 0 makes none.

        Raises:
            Refused: That would be too much work.
        """
        self._analysis = analysis
        sizes = [value.nbytes for value in analysis.program.values]
        self._least_remade = max(sizes, default=0) // remakes if remakes else None
        self._added: set[tuple[Node, int]] = set()
        self._needed: dict[Value, dict[tuple[State, int], None]] = {}
        self._used_whole: set[Value] = set()
        self.stages: list[Stage] = []
        self.cuts: dict[Value, State] = {}
        for value, state in outputs:
            self._use(value, state, 0)
        for node in reversed(analysis.program.nodes):
            self._visit(node)
        for value in analysis.program.values:
            if value.node is None:
                self._take_pieces(value)
        for stage in self.stages:
            stage.before.reverse()
            stage.loop.reverse()
        if len(self._added) > _MOST_WORK * len(analysis.program.nodes):
            raise Refused("large values would be made too often")

    def only_as(self, value: Value) -> Split | None:
        """The split of a whole value, when it is needed in that one split and no other way."""
        states = {state for state, _ in self._needed.get(value, {}) if state is not WHOLE}
        state = states.pop() if len(states) == 1 else None
        return state if isinstance(state, Split) and value not in self._used_whole else None

    def cut_once(self, value: Value) -> tuple[State, int] | None:
        """How and in which stage a whole value is cut, when it is needed in no other way."""
        cuts = [each for each in self._needed.get(value, {}) if each[0] is not WHOLE]
        return cuts[0] if len(cuts) == 1 and value not in self._used_whole else None

    def _use(self, value: Value, state: State, stage: int) -> None:
        """Note that an equation or an output needs a value."""
        if state is WHOLE:
            self._used_whole.add(value)
        self._need(value, state, stage)

    def _need(self, value: Value, state: State, stage: int) -> None:
        where = _BEFORE if state is WHOLE else stage
        self._needed.setdefault(value, {})[state, where] = None

    def _visit(self, node: Node) -> None:
        """Add the steps that make what is needed of a node's outputs."""
        if node.has_effects:
            self._add_whole(node, self._whole_stage(node))
        for value in node.outputs:
            self._take_pieces(value)
        wholes = [v for v in node.outputs if (WHOLE, _BEFORE) in self._needed.get(v, {})]
        in_pieces = [v for v in wholes if self._made_by_a_piece(v)]
        again = [v for v in wholes if v not in in_pieces and self._known_again(v)]
        if again:
            self._add_whole(node, max(self._analysis.whole_from(v) for v in again))
        for value in wholes:
            if value not in again and value not in in_pieces:
                self._export(value)
        needed = [(v, *each) for v in node.outputs for each in self._needed.get(v, {})]
        if in_pieces or any(self._is_own(*each) for each in needed):
            stage = self._analysis.stage[node.outputs[0]]
            self._add_part(node, self._analysis.placed[node], stage)

    def _whole_stage(self, node: Node) -> int:
        return max((self._analysis.whole_from(v) for v in node.inputs), default=0)

    def _made_by_a_piece(self, value: Value) -> bool:
        """Whether a value is whole, and made along with others that are not. Only in bodies."""
        placed = value.node is not None and value.node in self._analysis.placed
        return placed and self._analysis.state[value] is WHOLE

    def _known_again(self, value: Value) -> bool:
        """Whether a value is made whole without a loop."""
        return self._analysis.state[value] is WHOLE or value in self._analysis.again

    def _is_own(self, value: Value, state: State, stage: int) -> bool:
        """Whether a value is needed as the analysis has it."""
        own = self._analysis.state[value]
        return own is not WHOLE and own == state and self._analysis.stage[value] == stage

    def _export(self, value: Value) -> None:
        stage = self._analysis.stage[value]
        self._stage(stage).exports.append(value)
        self._need(value, self._analysis.state[value], stage)

    def _take_pieces(self, value: Value) -> None:
        """Add the steps for the pieces of a value that is whole, or whole by then."""
        for state, stage in list(self._needed.get(value, {})):
            if state is WHOLE or self._is_own(value, state, stage):
                continue
            way = self._made_again(value, state) or self._remade(value, state)
            if way is not None and value.node is not None:
                self._add_part(value.node, way, stage)
                continue
            self._stage(stage).loop.append(Cut(value, state))
            self.cuts[value] = state
            self._need(value, WHOLE, stage)

    def _made_again(self, value: Value, state: State) -> Placement | None:
        """How to make a piece of a whole value from pieces, where that is better than to cut it."""
        node = value.node
        if node is None or node.name not in rules.CHEAP or not isinstance(state, Split):
            return None
        if not self._known_again(value) or len(node.outputs) != 1:
            return None
        if node.name == "random_bits" and value in self._used_whole:
            return None  # the bits exist anyway
        large = [v for v in node.inputs if v.node is not None and 2 * v.nbytes >= value.nbytes]
        if len(large) > 1 or (value in self._used_whole and large):
            return None
        have: Sequence[State] = [WHOLE for _ in node.inputs]
        way = rules.place(node, self._analysis.grid, Slot(True, 0), state, have)
        return None if isinstance(way, str) else way

    def _remade(self, value: Value, state: State) -> Placement | None:
        """How a large value of an earlier stage was made, where it is to be made once more."""
        if self._least_remade is None or value.nbytes < self._least_remade or value.node is None:
            return None
        way = self._analysis.placed.get(value.node)
        if way is None or not isinstance(state, Split) or self._analysis.state[value] != state:
            return None
        if value in self._used_whole or any(isinstance(s, Partial) for s in way.ins):
            return None
        return way

    def _add_whole(self, node: Node, stage: int) -> None:
        where = self._stage(stage)
        # A body is one list: a whole value in it may be computed from values of the piece.
        (where.loop if self._analysis.inside else where.before).append(Whole(node))
        for value in node.inputs:
            self._use(value, WHOLE, stage)

    def _add_part(self, node: Node, way: Placement, stage: int) -> None:
        if way is self._analysis.placed.get(node):
            if (node, stage) in self._added:
                return
            self._added.add((node, stage))
        self._stage(stage).loop.append(Part(node, way))
        for value, state in zip(node.inputs, way.ins, strict=True):
            self._use(value, state, stage)

    def _stage(self, index: int) -> Stage:
        while len(self.stages) <= index:
            self.stages.append(Stage())
        return self.stages[index]
