"""The state of a training step: how many arrays of each parameter's shape it has."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import is_backward
from hbmwatch._findings.phrases import list_some, short_paths
from hbmwatch._records.sizes import format_size

# The parameters and the two moments of Adam; one more is an accumulator, or an average.
COPIES_OF_ADAM = 3
COPIES_WITH_ACCUMULATOR = COPIES_OF_ADAM + 1


class State(NamedTuple):
    """The arguments that a step returns updated.

    Attributes:
        size_bytes: Their bytes on each device.
        paths: What they are called: "state".
        copies: The number of arrays of each shape, for the shapes with the most bytes.
        gradient_bytes: The bytes of temporaries of the same shapes that the backward pass makes.
    """

    size_bytes: int
    paths: str
    copies: int
    gradient_bytes: int


def state_of(facts: ProgramFacts) -> State:
    """The state of a program."""
    state = [a for a in facts.arguments if a.number in facts.state and a.in_hbm]
    sizes: Counter[tuple[int, ...]] = Counter()
    for argument in state:
        sizes[argument.dims] += argument.size_bytes
    most = sizes.most_common(1)
    copies = sum(argument.dims == most[0][0] for argument in state) if most else 0
    gradients = (
        live.size_bytes
        for live in facts.live
        if live.op.kind == "temporary" and live.dims in sizes and is_backward(live.context)
    )
    largest = sorted(state, key=lambda argument: -argument.size_bytes)
    return State(
        size_bytes=sum(argument.size_bytes for argument in state),
        paths=list_some(short_paths(argument.path for argument in largest)),
        copies=copies,
        gradient_bytes=sum(gradients),
    )


def describe(facts: ProgramFacts, state: State) -> str:
    """Evidence: what the state has, and what the gradients add to it."""
    size, peak = format_size(state.size_bytes), format_size(facts.peak_bytes)
    text = f"{size} of the {peak} peak are arguments that the program returns updated "
    text += f"({state.paths}), with {state.copies} arrays of the largest shape."
    if state.copies == COPIES_WITH_ACCUMULATOR:
        text += (
            f" If the parameters and the two moments of Adam are {COPIES_OF_ADAM} of these, the "
            "other is an accumulator of gradients or an average of the parameters."
        )
    if state.gradient_bytes >= facts.minimum_saving_bytes:
        text += f" Gradients of these shapes take {format_size(state.gradient_bytes)} more."
    return text


def smaller(state: State) -> str:
    """What makes the state smaller."""
    accumulates = state.copies == COPIES_WITH_ACCUMULATOR
    what = "an accumulator or the moments" if accumulates else "the moments"
    return f"keep {what} in a narrower dtype"
