"""The bits of a random generator, which exist in full together with the array that is drawn."""

from __future__ import annotations

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import PrimitiveType

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


def is_random_bits(candidate: Candidate) -> bool:
    """Whether the buffer holds the bits of a generator, and not what is drawn from them.

    The drawn array is needed; and where its memory holds the bits first, they cost nothing.
    """
    if candidate.first.element_type not in _BITS or candidate.first.op.kind == "output":
        return False
    chain = candidate.origin.chain
    if chain >= THREEFRY_OPCODES or "rng-bit-generator" in chain:
        return True
    return any(word in candidate.names for word in RANDOM_NAMES)
