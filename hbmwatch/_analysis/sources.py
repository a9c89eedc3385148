"""The value that an instruction moves, slices or casts: an argument, or what was computed."""

from __future__ import annotations

from collections.abc import Iterator

from hbmwatch._analysis.graph import MOVES, Graph
from hbmwatch._xla.protos import HloInstructionProto

# Copies and fusions are nested a few deep; in a damaged program they may form a ring.
MOST_STEPS = 300
_PARTS = frozenset(
    "slice dynamic-slice all-gather all-gather-start all-gather-done collective-permute "
    "collective-permute-start collective-permute-done".split()
)


def source_of(
    graph: Graph, instruction: HloInstructionProto, outer: tuple[HloInstructionProto, ...] = ()
) -> HloInstructionProto:
    """The instruction whose result is only moved, sliced, cast or gathered up to this one.

    The walk enters fusions and leaves them, and goes from the body of a loop to the value that the
    loop starts from, where the loop does not change it.

    Args:
        graph: The program's instructions.
        instruction: The instruction.
        outer: The fusions that it is in, outermost first.
    """
    current = instruction
    for _ in range(MOST_STEPS):
        above = None
        if current.opcode == "parameter":
            above = graph.passed(outer[-1], current) if outer else None
            outer = outer[:-1]
        elif current.opcode == "get-tuple-element":
            above, outer = _entry(graph, current, outer)
        elif current.opcode in MOVES or current.opcode in _PARTS:
            above = graph.first(current)
        elif graph.fused(current) is not None:
            above = graph.fused_root(current)
            outer = (*outer, current)
        if above is None:
            break
        current = above
    return current


_Call = tuple[HloInstructionProto, tuple[HloInstructionProto, ...]]


def everything(
    graph: Graph,
) -> Iterator[tuple[HloInstructionProto, tuple[HloInstructionProto, ...]]]:
    """The instructions that run, each with the fusions that it is in, outermost first."""
    for computation in graph.running:
        for instruction in graph.program.inside(computation):
            yield instruction, ()
            calls: list[_Call] = [(instruction, ())] if graph.fused(instruction) else []
            for call, outer in calls:  # grows meanwhile; a damaged program may have a ring
                inner = graph.fused(call)
                if inner is None or any(call.id == around.id for around in outer):
                    continue
                within = (*outer, call)
                for inside in graph.program.inside(inner):
                    yield inside, within
                    if graph.fused(inside) is not None:
                        calls.append((inside, within))


def _entry(
    graph: Graph, entry: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
) -> tuple[HloInstructionProto | None, tuple[HloInstructionProto, ...]]:
    """What computes an entry of a tuple, and the fusions that it is in; None where unknown."""
    holder = graph.first(entry)
    if holder is None:
        return None, outer
    if holder.opcode == "parameter":
        loop, _ = graph.loop_of(holder)
        kept = loop is not None and not outer and graph.keeps(loop, entry.tuple_index)
        return (graph.element(loop, entry.tuple_index) if loop and kept else None), outer
    if holder.opcode == "while":
        kept = graph.keeps(holder, entry.tuple_index)
        return (graph.element(holder, entry.tuple_index) if kept else None), outer
    if graph.fused(holder) is not None:
        return graph.element(holder, entry.tuple_index), (*outer, holder)
    found = graph.element(holder, entry.tuple_index)
    return (found if found is not None else holder), outer
