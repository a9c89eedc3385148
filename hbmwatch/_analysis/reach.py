"""What is computed from a value, through loops and branches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hbmwatch._analysis.graph import Graph
from hbmwatch._analysis.no_batch import carried
from hbmwatch._xla.protos import HloInstructionProto

# What runs computations whose instructions all count as computed from its operands.
_RUNS = frozenset(("call", "conditional", "async-start"))


def reached(graph: Graph, starts: Iterable[HloInstructionProto]) -> Iterator[int]:
    """The ids of the instructions outside of fusions that are computed from some values.

    A loop passes on each of its values by its position.
    """
    todo = list(starts)
    seen = {start.id for start in todo}
    while todo:
        current = todo.pop()
        yield current.id
        for user in graph.users(current):
            for following in _following(graph, current, user):
                if following.id not in seen:
                    seen.add(following.id)
                    todo.append(following)


def _following(
    graph: Graph, value: HloInstructionProto, user: HloInstructionProto
) -> Iterator[HloInstructionProto]:
    """What a user of a value makes of it."""
    if user.opcode in _RUNS:
        for called in map(graph.program.computations.get, user.called_computation_ids):
            yield from graph.program.inside(called) if called is not None else ()
    if user.opcode != "tuple":
        yield user
        return
    positions = {i for i, operand in enumerate(user.operand_ids) if operand == value.id}
    loop, body = graph.loop_of(user)
    if loop is not None and body is not None and body.root_id == user.id:
        yield from (i for at, i in carried(graph, loop) if at in positions)
        yield from (i for i in graph.users(loop) if i.tuple_index in positions)
    for holder in graph.users(user):
        if holder.opcode == "while":
            yield from (i for at, i in carried(graph, holder) if at in positions)
            yield from (i for i in graph.users(holder) if i.tuple_index in positions)
        elif holder.opcode != "get-tuple-element" or holder.tuple_index in positions:
            yield holder
