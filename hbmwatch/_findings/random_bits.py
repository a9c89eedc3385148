"""The bits of a random generator, and draws for all steps of a loop, which exist in full."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import Graph, elements
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.no_batch import carried, reads_rows
from hbmwatch._analysis.origin import Origin, is_scalar, origin
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.types import PrimitiveType, float_bits

ADVICE = BufferAdvice(
    slug="random-bits",
    prior_weight=1.6,
    title="The random bits of a large draw exist in full{at}",
    remedy="Draw in chunks (jax.lax.map over split keys), so that only the bits of one chunk exist "
    "at a time. With threefry, keep jax_threefry_partitionable on: the compiler then computes the "
    "bits where it uses them. On a mesh, shard the draw (out_shardings).",
    link="https://docs.jax.dev/en/latest/jax.random.html",
    will_not_help="a narrower dtype: the generator makes uint32 bits for every dtype",
    reads_origin=False,
)


def _freed_by_steps(buffers: Sequence[LiveBuffer]) -> int:
    """All draws but those of one step."""
    return sum(live.size_bytes - live.size_bytes // live.dims[0] for live in buffers)


def _in_steps(found: Sequence[Candidate]) -> str:
    """What to change; a backward pass would keep what each step draws."""
    text = STEPS_ADVICE.remedy
    if found[0].facts.buffers.differentiated:
        text += " Where gradients are taken through the loop, put jax.checkpoint around its body: "
        text += "otherwise the draws of all steps are kept for the backward pass."
    return text


def _rows(live: LiveBuffer, _: ProgramFacts) -> str:
    """How many steps it is drawn for."""
    return f", drawn for all {live.dims[0]} steps of the loop that reads one row per step"


STEPS_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="The random numbers of all steps are drawn before the loop{at}",
    remedy="Draw inside of the loop, with a key for each step (jax.random.fold_in(key, step), or "
    "jax.random.split(key, steps) as xs): the draws of one step exist at a time. The numbers are "
    "other ones than those of a single large draw.",
    remedy_for=_in_steps,
    freed_bytes=_freed_by_steps,
    link=ADVICE.link,
    will_not_help="donation: the draws are made in the program",
    detail=_rows,
)
# What to do with draws that are the result of a program, such as the weights of a model.
RETURNED = (
    "The result is drawn from a random generator, and nothing reduces it. Draw it in a narrower "
    "dtype (bfloat16 takes half of float32), shard it as it is made (jax.jit(..., "
    "out_shardings=...)), or draw one part of it at a time and move each to host memory."
)
# Parts of the op_names of jax.random.
RANDOM_NAMES = (
    "random_bits",
    "threefry",
    "rng_bit_generator",
    "_uniform",
    "_normal",
    "_gumbel",
    "_bernoulli",
    "_truncated_normal",
    "random_gamma",
    "_shuffle",
)
_BITS = frozenset((PrimitiveType.U8, PrimitiveType.U16, PrimitiveType.U32, PrimitiveType.U64))
# Threefry, written out in HLO, has all of these opcodes.
THREEFRY_OPCODES = frozenset(("xor", "shift-left", "shift-right-logical"))
# Between bits and the loop that reads the draws are a few instructions.
MOST_VISITS = 100


def is_random_bits(candidate: Candidate) -> bool:
    """Whether the buffer holds the bits of a generator, and not what is drawn from them.

    The drawn array is needed; and where its memory holds the bits first, they cost nothing.
    """
    if candidate.first.element_type not in _BITS or candidate.first.op.kind == "output":
        return False
    if _has_generator(candidate.origin):
        return True
    return any(word in candidate.names for word in RANDOM_NAMES)


def _has_generator(origin: Origin) -> bool:
    """Whether a generator is on the way to where a number of elements comes from."""
    return origin.chain >= THREEFRY_OPCODES or "rng-bit-generator" in origin.chain


def is_drawn(candidate: Candidate) -> bool:
    """Whether a buffer is computed from random bits, keys and numbers alone, element by element."""
    return _is_random(candidate.facts.buffers.graph, candidate.origin)


def _is_random(graph: Graph, origin: Origin, by_row: bool = False) -> bool:
    """Whether all elements come from a generator; an array of floats among the ends is data.

    Args:
        graph: The program's instructions.
        origin: Where the elements come from.
        by_row: Whether an array that is the same in each row counts as numbers do.
    """
    if origin.is_cut or not _has_generator(origin):
        return False
    made = [end.instruction for end in origin.ends if not is_scalar(graph, end.instruction)]
    made = [i for i in made if not (by_row and _is_same_in_rows(graph, i))]
    return not any(float_bits(i.shape.element_type) or graph.is_argument(i) for i in made)


def _is_same_in_rows(graph: Graph, instruction: HloInstructionProto) -> bool:
    """Whether an instruction repeats an array along the first dimension."""
    source = graph.first(instruction) if instruction.opcode == "broadcast" else None
    return source is not None and source.shape.dimensions == instruction.shape.dimensions[1:]


def is_drawn_for_loop(candidate: Candidate) -> bool:
    """Whether a buffer is, or becomes, draws that only loops read, one row per step."""
    first, graph = candidate.first, candidate.facts.buffers.graph
    if first.op.kind != "temporary" or first.loop_buffer is not None or len(first.dims) < 2:
        return False
    if not _has_generator(candidate.origin) or first.dims[0] < 2:
        return False
    draws = _scanned(graph, first.instruction)
    return bool(draws) and all(
        _is_random(graph, origin(graph, made, elements(made.shape), made.shape.element_type), True)
        for made in draws
    )


def _scanned(graph: Graph, start: HloInstructionProto) -> list[HloInstructionProto]:
    """The values that loops read row by row, computed element by element from an instruction.

    None where anything else reads such a value.
    """
    count = elements(start.shape)
    todo, seen, found = [start], {start.id}, list[HloInstructionProto]()
    while todo and len(seen) < MOST_VISITS:
        current = todo.pop()
        for user in graph.users(current):
            if user.opcode == "tuple":
                if not _are_rows(graph, user, current.id):
                    return []
                found.append(current)
            elif elements(user.shape) != count or user.opcode == "while":
                return []
            elif user.id not in seen:
                seen.add(user.id)
                todo.append(user)
    return [] if todo else found


def _are_rows(graph: Graph, start: HloInstructionProto, value: int) -> bool:
    """Whether loops that start with a tuple read its entry with this id row by row alone."""
    positions = {p for p, operand in enumerate(start.operand_ids) if operand == value}
    loops = graph.users(start)
    return bool(loops) and all(
        loop.opcode == "while" and graph.keeps(loop, p) and _reads_rows(graph, loop, p)
        for loop in loops
        for p in positions
    )


def _reads_rows(graph: Graph, loop: HloInstructionProto, position: int) -> bool:
    """Whether the body of a loop reads the value at a position of its tuple row by row."""
    return any(at == position and reads_rows(graph, given) for at, given in carried(graph, loop))
