"""First dimensions of arguments that are no batch: layers, edges, a vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from hbmwatch._analysis.graph import Graph
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.shapes import element_count


def looped_over(graph: Graph) -> frozenset[int]:
    """The numbers of the arguments that a loop reads row by row, as a scan reads its xs.

    Their first dimension is layers, time steps or micro-batches.
    """
    return frozenset(
        number
        for loop in graph.loops
        for position, given in carried(graph, loop)
        if (number := _argument(graph, loop, position)) is not None and reads_rows(graph, given)
    )


def carried(graph: Graph, loop: HloInstructionProto) -> Iterator[tuple[int, HloInstructionProto]]:
    """The values that the body of a loop gets, with their positions in its tuple."""
    for called in loop.called_computation_ids:
        body = graph.program.computations.get(called)
        for instruction in graph.program.inside(body) if body is not None else ():
            holder = graph.first(instruction)
            if instruction.opcode == "get-tuple-element" and holder is not None:
                if holder.opcode == "parameter":
                    yield instruction.tuple_index, instruction


def _argument(graph: Graph, loop: HloInstructionProto, position: int) -> int | None:
    """The number of the argument that a loop carries unchanged at a position; None otherwise."""
    start = graph.start(loop, position)
    if start is None or not graph.keeps(loop, position):
        return None
    return graph.argument_ids.get(start.id)


def reads_rows(graph: Graph, value: HloInstructionProto) -> bool:
    """Whether a value is read one row at a time."""
    rows = value.shape.dimensions[0] if value.shape.dimensions else 0
    whole = element_count(value.shape.dimensions)
    return any(
        element_count(inner.shape.dimensions) * rows == whole
        and (source := graph.first(inner)) is not None
        and element_count(source.shape.dimensions) == whole
        for user in graph.users(value)
        for inner in (user, *graph.everything_in(user))
        if inner.opcode == "dynamic-slice"
    )


def added_by_index(graph: Graph, lengths: Set[int]) -> frozenset[int]:
    """The numbers of rows of a graph or a sparse matrix, which the forward pass adds by index.

    segment_sum adds the rows of edges to those of nodes: a part of them gives another result. The
    gradient of a lookup adds rows by index too, but in the backward pass.

    Args:
        graph: The program's instructions.
        lengths: The first dimensions of the integer arguments; some of these are indices.
    """
    if not lengths:  # it saves reading the whole program
        return frozenset()
    return frozenset(
        length
        for nodes, edges, _ in _additions(graph)
        # A loop over blocks of edges adds one block at a time.
        if (whole := {length for length in lengths if length % edges == 0})
        for length in (*nodes, edges, *whole)
    )


def edges(graph: Graph) -> frozenset[int]:
    """The numbers of rows that the forward pass adds at once by index: edges, or entries.

    A row is more than one number: a histogram adds ones.
    """
    return frozenset(edges for _, edges, added in _additions(graph) if added > edges)


def _additions(graph: Graph) -> Iterator[tuple[Sequence[int], int, int]]:
    """The rows that are added to, the number of rows that an index adds, and of their elements."""
    for computation in graph.program.computations.values():
        for scatter in graph.program.inside(computation):
            if scatter.opcode != "scatter" or "transpose(" in scatter.metadata.op_name:
                continue
            operands = [operand.shape.dimensions for operand in graph.operands(scatter)]
            rows = [dims[:1] for dims in operands[:2]]
            if len(rows) == 2 and rows[1] and rows[1][0] > 1 and _adds(graph, scatter):
                yield rows[0], rows[1][0], element_count(operands[-1])


def _adds(graph: Graph, scatter: HloInstructionProto) -> bool:
    """Whether a scatter adds to the values that it updates."""
    called = map(graph.program.computations.get, scatter.called_computation_ids)
    roots = (graph.find(inner.root_id) for inner in called if inner is not None)
    return any(root is not None and root.opcode == "add" for root in roots)
