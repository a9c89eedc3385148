"""The random bits of one large draw."""

from __future__ import annotations

from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import PrimitiveType

ADVICE = BufferAdvice(
    slug="random-bits",
    prior_weight=1.6,
    title="Random bits for one large draw (an initializer or noise){at}",
    remedy="Generate it in chunks (jax.lax.map over split keys), shard it over the mesh "
    "(out_shardings with jax_threefry_partitionable), or use the rbg PRNG.",
    link="https://docs.jax.dev/en/latest/jax.random.html",
    will_not_help="a narrower dtype: the generator makes uint32 bits for every dtype",
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
# Threefry, written out in HLO, has all of these opcodes.
THREEFRY_OPCODES = frozenset(("xor", "shift-left", "shift-right-logical"))


def is_random_draw(candidate: Candidate) -> bool:
    """Whether the buffer holds random bits, or values computed directly from them.

    On a mesh, the result of a draw is left to the finding on replication.
    """
    chain = candidate.origin.chain
    generated = chain >= THREEFRY_OPCODES or "rng-bit-generator" in chain
    named = any(word in candidate.names for word in RANDOM_NAMES)
    if not (generated or (named and candidate.first.element_type == PrimitiveType.U32)):
        return False
    return candidate.first.op.kind != "output" or candidate.facts.device_count < 2
