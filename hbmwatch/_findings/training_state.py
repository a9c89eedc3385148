"""The state of a training step: how many arrays of each parameter's shape it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import ERROR_1000, either, largest_paths, list_some
from hbmwatch._findings.rows import rows_of
from hbmwatch._records.paths import path_keys
from hbmwatch._records.report import Finding
from hbmwatch._records.roles import OPTIMIZER, argument_role
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import unnumbered
from hbmwatch._xla.types import float_bits

ADVICE = Advice(
    slug="training-state",
    prior_weight=1.2,
    link=ERROR_1000,
    will_not_help="a smaller batch or jax.checkpoint: neither makes the state smaller",
    without_batch="jax.checkpoint: it does not make the state smaller",
)
# The parameters and the two moments of Adam; one more is an accumulator, or an average.
COPIES_OF_ADAM = 3
COPIES_WITH_ACCUMULATOR = COPIES_OF_ADAM + 1
# The state of a training step that is half of the peak is what fills it.
LEAST_SHARE_OF_PEAK = 0.5
# So many are written with their bytes: parameters, moments, an accumulator, an average.
MOST_TREES = 6
# A tree with a hundredth of the bytes (a count) is not named.
LEAST_SHARE = 1 / 100


class State(NamedTuple):
    """The arguments that a step returns updated.

    Attributes:
        arguments: The arguments.
        trees: For each of them the path of its tree: "opt_state[0].mu" of all first moments.
        beside: Those that have the shape of a parameter, and its last keys: moments, averages.
        copies: The number of arrays for each parameter, of the shape with the most bytes.
    """

    arguments: tuple[Argument, ...]
    trees: tuple[str, ...]
    beside: tuple[Argument, ...]
    copies: int

    @property
    def size_bytes(self) -> int:
        """Their bytes on each device."""
        return sum(argument.size_bytes for argument in self.arguments)


def find(facts: ProgramFacts) -> Finding | None:
    """A training step whose state, of several arrays a parameter, is most of the peak."""
    state = facts.once(state_of)
    least = LEAST_SHARE_OF_PEAK * facts.peak_bytes
    if state.size_bytes < least or state.copies < 2 or not facts.buffers.differentiated:
        return None
    share = round(100 * state.size_bytes / facts.peak_bytes)
    size = format_size(state.size_bytes)
    wide = [a for a in state.beside if float_bits(a.element_type) == 32]
    return ADVICE.finding(
        title=f"The state of the training step takes {share}% of the peak ({size}): "
        f"{state.copies} arrays for each parameter",
        evidence=f"{size} of the {format_size(facts.peak_bytes)} peak are arguments that the "
        f"program returns updated: {in_trees(state)}. {_others(state)}".strip(),
        remedy=f"Shard the state over more devices (NamedSharding, FSDP), {_smaller(state)}.",
        saves_bytes=sum(argument.size_bytes for argument in wide) // 2,
        buffers=rows_of(facts, wide),
    )


def state_of(facts: ProgramFacts) -> State:
    """The state of a program."""
    state = tuple(a for a in facts.arguments if a.number in facts.state and a.in_hbm)
    split = _split([(a.dims, path_keys(a.path)) for a in state])
    alike: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for i, (_, end) in enumerate(split):
        alike.setdefault((state[i].dims, end), []).append(i)
    beside: list[Argument] = []
    sizes: Counter[tuple[tuple[int, ...], int]] = Counter()
    for (dims, _), group in alike.items():
        others = [i for i in group if argument_role(state[i].path) != "parameters"]
        others = others if len(others) < len(group) else []
        beside += [state[i] for i in others]
        copies = 1 + len({unnumbered(split[i][0]) for i in others})
        sizes[dims, copies] += sum(state[i].size_bytes for i in group)
    most = sizes.most_common(1)
    return State(
        state, tuple(tree for tree, _ in split), tuple(beside), most[0][0][1] if most else 0
    )


def _split(leaves: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[tuple[str, str]]:
    """Each path as that of its tree, and the last keys, which a leaf as large has too."""
    ends = Counter((dims, "".join(keys[n:])) for dims, keys in leaves for n in range(1, len(keys)))
    found = []
    for dims, keys in leaves:
        shared = (n for n in range(1, len(keys)) if ends[dims, "".join(keys[n:])] > 1)
        n = next(shared, len(keys))
        found.append(("".join(keys[:n]), "".join(keys[n:])))
    return found


def in_trees(state: State) -> str:
    """ "params 4.75 GiB, opt_state.mu 4.75 GiB", the trees of a state with their bytes."""
    sizes: Counter[str] = Counter()
    for tree, argument in zip(state.trees, state.arguments, strict=True):
        sizes[tree] += argument.size_bytes
    large = [tree for tree, size in sizes.most_common() if size >= LEAST_SHARE * state.size_bytes]
    if len(large) > MOST_TREES:
        return list_some(largest_paths(state.arguments))
    return ", ".join(f"{tree} {format_size(sizes[tree])}" for tree in large)


def optimizers(facts: ProgramFacts, prefix: str = "") -> str:
    """ "optax.adafactor, optax.lion", the optimizers with which a state would fit; "" for none.

    Adafactor holds neither of the moments of Adam in full, and Lion one of them.

    Args:
        facts: The failing program.
        prefix: What to write in front of their names.
    """
    state = facts.once(state_of)
    beside = {argument.number for argument in state.beside}
    sizes: Counter[str] = Counter()
    for tree, argument in zip(state.trees, state.arguments, strict=True):
        if argument.number in beside and argument_role(argument.path) == OPTIMIZER:
            sizes[tree] += argument.size_bytes if "acc" not in path_keys(tree)[-1] else 0
    moments = sorted(sizes.values())[-2:]
    if len(moments) < 2 or facts.limit_bytes is None:
        return ""
    freed = {"adafactor": sum(moments), "lion": moments[0]}
    left = {name: facts.peak_bytes - size for name, size in freed.items()}
    return ", ".join(prefix + name for name in left if left[name] <= facts.limit_bytes)


def _others(state: State) -> str:
    """What a fourth array of each shape may be."""
    if state.copies != COPIES_WITH_ACCUMULATOR:
        return ""
    return (
        f"If the parameters and the two moments of Adam are {COPIES_OF_ADAM} of these, the "
        "other is an accumulator of gradients (as of optax.MultiSteps) or an average of the "
        "parameters."
    )


def _smaller(state: State) -> str:
    """What makes the state smaller."""
    accumulates = state.copies == COPIES_WITH_ACCUMULATOR
    what = "an accumulator or the moments" if accumulates else "all but the parameters"
    choices = [f"keep {what} in bfloat16", "keep them in host memory between the updates"]
    if state.copies >= COPIES_OF_ADAM:
        choices.append("use an optimizer with smaller moments (Adafactor, Lion)")
    return either(choices)
