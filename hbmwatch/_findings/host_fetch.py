"""Arrays in host memory that are copied to the device many at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import BufferAdvice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import MemoryColor

# While one array is used, the next one is fetched.
NEEDED_AT_ONCE = 2
# A scan reads a stack, of which it needs one slice at a time.
_INTO_LOOP = frozenset(("tuple", "while"))


def _freed(found: Sequence[Candidate]) -> int:
    """All fetched arrays but the two largest; of one array, all of it but a slice.

    Where the arrays are fetched one after another, nothing.
    """
    buffers: list[LiveBuffer] = [live for candidate in found for live in candidate.buffers]
    if len(buffers) > NEEDED_AT_ONCE:
        largest = sorted(live.size_bytes for live in buffers)[-NEEDED_AT_ONCE:]
        return all_bytes(buffers) - sum(largest)
    looped = any(user.opcode in _INTO_LOOP for c in found for user in c.uses)
    return 0 if not looped and _take_turns(found[0].facts, buffers) else all_bytes(buffers)


def _take_turns(facts: ProgramFacts, buffers: Sequence[LiveBuffer]) -> bool:
    """Whether the host has more arrays as large, and what is fetched first is freed first."""
    least = min(live.op.unpadded_bytes for live in buffers)
    alike = [a for a in facts.arguments if not a.in_hbm and a.size_bytes >= least]
    fetched = sorted(buffers, key=lambda live: live.op.start or 0)
    ends = [math.inf if live.op.end is None else live.op.end for live in fetched]
    return len(alike) > len(buffers) and all(a < b for a, b in itertools.pairwise(ends))


ADVICE = BufferAdvice(
    slug="host-fetch",
    prior_weight=2.0,
    title="Values fetched from host memory are on the device in full{at}",
    remedy="Fetch one layer at a time: call jax.device_put on the layer inside the body of a "
    "jax.lax.scan over the layers, not on the whole stack before it. In a Python loop, the "
    "compiler starts as many fetches early as fit.",
    link="https://docs.jax.dev/en/latest/notebooks/host-offloading.html",
    will_not_help="donation or another layout: each fetched array is a copy on the device",
    freed_for=_freed,
    names_argument=True,
    even_if_padded=True,
    reads_origin=False,
)
_COPIES = frozenset(("copy", "copy-start", "copy-done"))


def is_fetched(candidate: Candidate) -> bool:
    """Whether the buffer is a copy of a value in host memory."""
    made = candidate.first.instruction
    source = candidate.facts.buffers.graph.first(made)
    if made.opcode == "copy-done" and source is not None:
        source = candidate.facts.buffers.graph.first(source)
    return (
        made.opcode in _COPIES
        and candidate.first.op.kind == "temporary"
        and source is not None
        and source.shape.layout.memory_space == MemoryColor.HOST
    )
