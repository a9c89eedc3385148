"""Words and rules that the findings on residuals and on checkpoints share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import Family, LiveBuffer, is_recomputed

CHECKPOINT = "https://docs.jax.dev/en/latest/gradient-checkpointing.html"
AROUND_STEP = (
    "jax.checkpoint around the whole train step, or around the whole loss: that recomputes all "
    "layers at once"
)
# Op_names of a backward pass under jax.checkpoint: anywhere, and in a loop's body.
_UNDER = re.compile(r"transpose\(.*/(checkpoint/|remat2)")
_IN_LOOP = re.compile(r"transpose\(.*/while/body/.*checkpoint/")


def freed_bytes(saved: Sequence[LiveBuffer]) -> int:
    """The bytes that recomputation frees, at most: those of all layers but one.

    Of a loop buffer, all entries but one; of a family of equal buffers, all but one; of the buffers
    that have no equal, all but the largest.
    """
    filled = [(b.size_bytes, b.loop_buffer.length) for b in saved if b.loop_buffer is not None]
    families: dict[Family, list[int]] = {}
    for live in saved:
        if live.loop_buffer is None:
            families.setdefault(live.family, []).append(live.size_bytes)
    layers = [sizes for sizes in families.values() if len(sizes) > 1]
    others = [sizes[0] for sizes in families.values() if len(sizes) == 1]
    return sum(size - size // length for size, length in filled) + sum(
        sum(sizes) - max(sizes) for sizes in [*layers, others] if sizes
    )


def is_kept_by_policy(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a policy of jax.checkpoint saved a buffer.

    JAX rounds a saved value (reduce_precision), which the GPU compiler removes again; and its
    reader in the backward pass is under the checkpoint.
    """
    buffers = facts.buffers
    if not buffers.checkpointed or is_layer_input(facts, live):
        return False
    if "reduce_precision" in live.name or "reduce-precision" in buffers.origin(live).chain:
        return True
    if live.loop_buffer is not None:
        return any(_IN_LOOP.search(name) for name in buffers.op_names)
    return any(_UNDER.search(reader.metadata.op_name) for reader in buffers.uses(live))


def is_layer_input(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a buffer is the input of a layer, which a checkpoint keeps too.

    A loop stacks the values that it carries; in a checkpointed layer the recomputation reads its
    input.
    """
    filled = live.loop_buffer
    if filled is None:
        return any(is_recomputed(user.metadata.op_name) for user in facts.buffers.uses(live))
    written = facts.buffers.loop_buffers.written(filled)
    return written is filled.update or live.name.endswith("dynamic_update_slice")
