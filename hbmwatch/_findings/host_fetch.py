"""Arrays in host memory that are copied to the device many at a time."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import BufferAdvice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._xla.types import MemoryColor

# While one array is used, the next one is fetched.
NEEDED_AT_ONCE = 2


def _freed_bytes(buffers: Sequence[LiveBuffer]) -> int:
    """All fetched arrays but the two largest; of one array, all of it but a slice."""
    if len(buffers) <= NEEDED_AT_ONCE:
        return all_bytes(buffers)
    largest = sorted(live.size_bytes for live in buffers)[-NEEDED_AT_ONCE:]
    return all_bytes(buffers) - sum(largest)


ADVICE = BufferAdvice(
    slug="host-fetch",
    prior_weight=2.0,
    title="The values fetched from host memory are all on the device at once{at}",
    remedy="Fetch one layer at a time: call jax.device_put on the layer inside the body of a "
    "jax.lax.scan over the layers, not on the whole stack before it. In a Python loop, the "
    "compiler starts as many fetches early as fit.",
    link="https://docs.jax.dev/en/latest/notebooks/host-offloading.html",
    will_not_help="donation or another layout: each fetched array is a copy on the device",
    freed_bytes=_freed_bytes,
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
