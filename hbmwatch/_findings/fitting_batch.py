"""The batch, or the rows of an argument, with which a program should fit."""

from __future__ import annotations

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.reach import reached
from hbmwatch._findings.phrases import list_some

# 2% is left for layouts and fragmentation, which do not scale with the batch.
USABLE_SHARE_OF_LIMIT = 0.98
# Less would leave most of what is said to scale with the batch as large as it is.
LEAST_COMPUTED_SHARE = 0.5


def fitting_length(facts: ProgramFacts) -> int:
    """The largest batch that should fit; 0 if there is none, or if no limit is known."""
    limit, over, length = facts.limit_bytes, facts.over_limit_bytes, facts.batch.length
    if limit is None or not over or not has_batch(facts):
        return 0
    fixed = limit + over - facts.scaled_bytes(1.0)
    room = USABLE_SHARE_OF_LIMIT * limit - fixed
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        if facts.scaled_bytes(middle / length) <= room:
            low = middle
        else:
            high = middle
    return low


def is_training_batch(facts: ProgramFacts) -> bool:
    """Whether the rows are examples, as far as the program shows.

    It trains on them and does not pair them with each other; else they may be points, cells or
    configurations: a part of them need not give a part of the result.
    """
    length = facts.batch.length
    pairs = any(live.dims.count(length) > 1 for live in facts.scaling)
    return facts.buffers.differentiated and not pairs


def has_training_batch(facts: ProgramFacts) -> bool:
    """Whether a program trains on a batch that could be smaller."""
    return is_training_batch(facts) and has_batch(facts)


def has_batch(facts: ProgramFacts) -> bool:
    """Whether arguments have a batch, and what scales with it is computed from them.

    Else the program makes arrays whose length only happens to be the same.
    """
    return bool(facts.batch.arguments) and facts.once(_is_computed)


def _is_computed(facts: ProgramFacts) -> bool:
    """Whether half of the bytes that scale with the batch are computed from it, or are it."""
    numbers = {argument.number for argument in facts.batch.arguments}
    graph = facts.buffers.graph
    starts = [p.instruction for p in graph.parameters if p.number in numbers]
    wanted: dict[int, int] = {}
    for live in facts.scaling:
        made = live.instruction if live.loop_buffer is None else live.loop_buffer.update
        wanted[made.id] = wanted.get(made.id, 0) + live.size_bytes
    left = LEAST_COMPUTED_SHARE * sum(wanted.values())
    for number in reached(graph, starts):
        left -= wanted.get(number, 0)
        if left <= 0:
            return True
    return False


def batch_paths(facts: ProgramFacts) -> str:
    """The arguments that have the batch, the largest first: "x, y"."""
    largest = sorted(facts.batch.arguments, key=lambda argument: -argument.size_bytes)
    return list_some(argument.path for argument in largest)


def smaller_batch(facts: ProgramFacts) -> str:
    """What to pass: "use a smaller batch", or "pass fewer rows of x at a time"."""
    if is_training_batch(facts):
        return "use a smaller batch"
    return f"pass fewer rows of {batch_paths(facts)} at a time"


def fitting(facts: ProgramFacts) -> str:
    """Which batch should fit: "a batch of 4 instead of 8 should fit"; "" where none does."""
    length = fitting_length(facts)
    if not length:
        return ""
    if is_training_batch(facts):
        return f"a batch of {length} instead of {facts.batch.length} should fit"
    rows = f"{length} rows" if length > 1 else "1 row"
    return f"{rows} of {batch_paths(facts)} instead of {facts.batch.length} should fit"
