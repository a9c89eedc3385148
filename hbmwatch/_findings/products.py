"""Matrix products that are much larger than their factors, and softmaxes over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import MOVES, Graph, elements, joined_names
from hbmwatch._analysis.live_buffers import LiveBuffer, is_backward
from hbmwatch._analysis.origin import Origin, OriginInstruction, is_scalar, origin
from hbmwatch._analysis.sources import everything, source_of
from hbmwatch._xla.protos import HloInstructionProto

# A product that is not twice its larger factor is an ordinary layer.
LEAST_GROWTH = 2
# Names of operations over classes; a logsumexp may also sum over particles or configurations.
_CLASSES = ("softmax", "argmax", "take_along_axis", "cross_entropy")
_SOFTMAX = (*_CLASSES, "logsumexp")


_SUMS = ("reduce", "reduce-window")
# Between an argument and what a number multiplies it to.
_SCALED = MOVES | {"parameter", "fusion", "multiply", "divide", "negate", "broadcast", "constant"}
# What these names are called in a sentence.
_READERS = {
    "softmax": "a softmax",
    "cross_entropy": "a cross entropy",
    "argmax": "an argmax",
    "logsumexp": "a logsumexp",
    "take_along_axis": "take_along_axis",
}


class Product(NamedTuple):
    """A matrix product in the origin of a buffer.

    Attributes:
        factors: The instructions whose results it multiplies, without scalars.
        arguments: The arguments of the program that they are, also where a number multiplies one;
            None for a computed factor.
        sources: The instructions that compute them, behind moves and casts.
        size: Its number of elements.
        growth: How many times larger it is than its larger factor.
    """

    factors: Sequence[HloInstructionProto]
    arguments: Sequence[HloInstructionProto | None]
    sources: Sequence[HloInstructionProto]
    size: int
    growth: float


def find_product(graph: Graph, ends: Sequence[OriginInstruction]) -> Product | None:
    """The first product in the origin of a buffer, if it is much larger than its factors."""
    products = [end for end in ends if graph.is_product(end.instruction)]
    if not products:
        return None
    product, outer = products[0].instruction, products[0].outer
    factors = [f for f in graph.operands(product) if elements(f.shape) > 1]
    size = elements(product.shape)
    growth = size / max((elements(f.shape) for f in factors), default=size)
    if growth < LEAST_GROWTH:
        return None
    arguments = [_argument(graph, f, outer) for f in factors]
    sources = [source_of(graph, f, outer) for f in factors]
    return Product(factors, arguments, sources, size, growth)


def _argument(
    graph: Graph, factor: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
) -> HloInstructionProto | None:
    """The argument that a factor is, behind moves and times a number; None for a computed one."""
    given = graph.given(factor, outer)
    if given is not None:
        return given
    above = origin(graph, factor, elements(factor.shape), factor.shape.element_type)
    ends = [end.instruction for end in above.ends if not is_scalar(graph, end.instruction)]
    is_scaled = len(ends) == 1 and above.chain <= _SCALED and not above.is_cut
    return graph.given(ends[0], outer) if is_scaled else None


def ungathered(graph: Graph, end: OriginInstruction) -> OriginInstruction:
    """What a device contributes to an all-gather; other instructions as they are."""
    operand = graph.first(end.instruction)
    if operand is None or not end.instruction.opcode.startswith("all-gather"):
        return end
    source = source_of(graph, operand, end.outer)
    return OriginInstruction(source, ()) if graph.is_product(source) else end


def classes_named(origin: Origin, uses: Sequence[HloInstructionProto]) -> bool:
    """Whether a name says that a buffer has an entry for each class: a softmax, an argmax."""
    names = " ".join(origin.names) + joined_names(uses)
    return any(word in names for word in _CLASSES)


def reader_of_scores(origin: Origin, uses: Sequence[HloInstructionProto]) -> str:
    """What reads scores, by its name ("a softmax"); "" where an exponential and a sum do."""
    names = " ".join(origin.names) + joined_names(uses)
    return next((words for word, words in _READERS.items() if word in names), "")


def weighs(facts: ProgramFacts, size: int) -> bool:
    """Whether a softmax of so many elements is multiplied by something, as attention does."""
    known = facts.once(_weighed)
    if size not in known:
        known[size] = _is_multiplied(facts, size) and _is_softmax(facts, size)
    return known[size]


def _weighed(_: ProgramFacts) -> dict[int, bool]:
    """What `weighs` has found."""
    return {}


def _is_softmax(facts: ProgramFacts, size: int) -> bool:
    """Whether a softmax has so many elements: by its name, or exponentials over their sums."""
    graph = facts.buffers.graph
    return any(
        elements(instruction.shape) == size
        for instruction, outer in everything(graph)
        if "softmax" in instruction.metadata.op_name
        or (instruction.opcode == "divide" and _is_normalized(graph, instruction, outer))
    )


def _is_normalized(
    graph: Graph, divide: HloInstructionProto, outer: tuple[HloInstructionProto, ...]
) -> bool:
    """Whether a division is of exponentials by their sums, broadcast or one for each."""
    operands = graph.operands(divide)
    if len(operands) != 2 or source_of(graph, operands[0], outer).opcode != "exponential":
        return False
    divisor: HloInstructionProto | None = operands[1]
    while divisor is not None and divisor.opcode in MOVES:
        divisor = graph.first(divisor)
    if divisor is not None and divisor.opcode == "broadcast":
        divisor = graph.first(divisor)
    return divisor is not None and source_of(graph, divisor, outer).opcode in _SUMS


def _is_multiplied(facts: ProgramFacts, size: int) -> bool:
    """Whether the forward pass multiplies a value of so many elements."""
    graph = facts.buffers.graph
    return any(
        elements(factor.shape) == size
        for product, _ in everything(graph)
        if graph.is_product(product) and not is_backward(product.metadata.op_name)
        for factor in graph.operands(product)
    )


def is_softmax_input(live: LiveBuffer, origin: Origin, uses: Sequence[HloInstructionProto]) -> bool:
    """Whether a softmax (or logsumexp) reads a buffer, or computes it."""
    names = " ".join(origin.names) + joined_names(uses)
    if any(word in names for word in _SOFTMAX):
        return True
    # Without a name, an exponential and a reduction show a softmax. Together with a logistic they
    # are an activation. A backward pass has both for any activation, because it sums gradients.
    opcodes = origin.chain | {user.opcode for user in uses}
    plain = "logistic" not in names and not is_backward(live.context)
    return plain and "exponential" in opcodes and bool(opcodes & {"reduce", "reduce-window"})
