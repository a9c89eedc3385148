"""Find arguments that are returned updated: an output is computed from them element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.graph import Graph
from hbmwatch._xla.protos import HloComputationProto, HloInstructionProto

# After one of these opcodes, a value is no longer computed element by element.
_MIXES = frozenset(
    "dot convolution reduce reduce-window sort gather rng rng-bit-generator iota constant "
    "broadcast all-reduce all-gather".split()
)
# A custom call of XLA:TPU that concatenates the slices of a prefetched array.
_PREFETCHED = "ConcatBitcast"
# An update takes a few steps from argument to output; the search recurses, so it has a bound.
MOST_STEPS = 60

Masks = dict[int, list[int]]


class _Known(NamedTuple):
    """What earlier walks found.

    Attributes:
        sources: The arguments above one result of an instruction, by its id and which result.
        masks: The parameters above each result of a fusion, by its id.
    """

    sources: dict[tuple[int, int], frozenset[int]]
    masks: Masks


def updated(graph: Graph) -> frozenset[int]:
    """The numbers of the arguments from which an output of their shape is computed.

    It must be computed element by element: a matrix product, a sum or a gather in between needs the
    whole argument until it is done.
    """
    forms: dict[tuple[tuple[int, ...], int], set[int]] = {}
    for parameter in graph.parameters:
        if parameter.dims:
            form = (parameter.dims, parameter.element_type)
            forms.setdefault(form, set()).add(parameter.number)
    found: set[int] = set()
    known = _Known({}, {})
    for index, result in enumerate(graph.results):
        alike = forms.get((result.dims, result.element_type))
        if alike and result.instruction is not None:
            found |= alike & _sources(graph, result.instruction, index, known)
    return frozenset(found)


def _sources(
    graph: Graph, instruction: HloInstructionProto, index: int, known: _Known, depth: int = 0
) -> frozenset[int]:
    """The arguments from which a result is computed element by element, through loops too.

    Args:
        graph: The program's instructions.
        instruction: The instruction.
        index: Which of its results, if it has several.
        known: What was found already.
        depth: How far below the output it is.
    """
    key = (instruction.id, index)
    if key in known.sources:
        return known.sources[key]
    known.sources[key] = frozenset()
    if instruction.id in graph.argument_ids:
        known.sources[key] = frozenset((graph.argument_ids[instruction.id],))
    elif depth < MOST_STEPS:
        above, position = _operands(graph, instruction, index, known.masks)
        found = [_sources(graph, o, position, known, depth + 1) for o in above]
        known.sources[key] = found[0] if len(found) == 1 else frozenset().union(*found)
    return known.sources[key]


def _operands(
    graph: Graph, instruction: HloInstructionProto, index: int, known: Masks
) -> tuple[list[HloInstructionProto], int]:
    """The instructions that one result is computed from element by element, and their result.

    Args:
        instruction: The instruction.
        index: Which of its results, if it has several.
        known: What was found in fusions already.
    """
    opcode = instruction.opcode
    if opcode == "get-tuple-element":
        return graph.operands(instruction), instruction.tuple_index
    if opcode == "while":
        start = graph.element(instruction, index)
        return ([start] if start is not None else []), 0
    if opcode == "custom-call" and instruction.custom_call_target == _PREFETCHED:
        return _sliced(graph, instruction), 0
    inner = graph.fused(instruction)
    if inner is None:
        found = map(graph.find, _above(instruction, index))
        return [operand for operand in found if operand is not None], 0
    if instruction.id not in known:
        known[instruction.id] = _masks(inner)
    masks = known[instruction.id]
    mask = masks[index if index < len(masks) else 0] if masks else 0
    passed = [o for i, o in enumerate(instruction.operand_ids[:]) if mask >> i & 1]
    return [operand for operand in map(graph.find, passed) if operand is not None], 0


def _above(instruction: HloInstructionProto, index: int = 0) -> Sequence[int]:
    """The ids of the operands that a result is computed from element by element.

    A scatter and the kernel of a custom call may write a part of an operand in place.
    """
    operands = instruction.operand_ids[:]
    if instruction.opcode == "scatter":
        return operands[: len(operands) // 2]  # the others are the index, and what to write
    if instruction.opcode == "custom-call":
        alike = instruction.output_operand_aliasing
        return [
            operands[a.operand_index]
            for a in alike
            if [*a.output_shape_index] in ([], [index]) and a.operand_index < len(operands)
        ]
    return () if instruction.opcode in _MIXES else operands


def _sliced(graph: Graph, whole: HloInstructionProto) -> list[HloInstructionProto]:
    """The value that XLA:TPU copies to VMEM in slices and concatenates there."""
    done = graph.first(whole)
    started = graph.first(done) if done is not None else None
    source = graph.first(started) if started is not None else None
    return [source] if source is not None else []


def _masks(inner: HloComputationProto) -> list[int]:
    """For each result of a fusion, the parameters that it is computed from element by element.

    A set of parameters is a number, with one bit for each.
    """
    masks: dict[int, int] = {}
    results: Sequence[int] = ()
    for instruction in inner.instructions:
        opcode, number = instruction.opcode, instruction.id
        operands: Sequence[int] = ()
        if opcode == "parameter":
            # A damaged program may number them without bounds, or below 0.
            masks[number] = 1 << (instruction.parameter_number % len(inner.instructions))
        else:
            operands = _above(instruction)
            mask = 0
            for operand in operands:
                mask |= masks.get(operand, 0)
            masks[number] = mask
        if number == inner.root_id:
            results = operands if opcode == "tuple" else [number]
    return [masks.get(result, 0) for result in results]
