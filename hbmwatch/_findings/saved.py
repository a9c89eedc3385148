"""Words and rules that the findings on residuals and on checkpoints share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import (
    Family,
    LiveBuffer,
    is_backward,
    is_one_per_layer,
    is_recomputed,
)
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings.advice import all_bytes
from hbmwatch._xla.shapes import unpadded_bytes

# A chain of layers keeps the inputs of its layers and little else.
LEAST_SHARE_OF_CHAIN = 0.75
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


def carried_bytes(facts: ProgramFacts, saved: Sequence[LiveBuffer]) -> int:
    """The bytes that jax.checkpoint around the bodies of scans still keeps: what they carry.

    Less what the program keeps of the carry in addition to the residuals.
    """
    loops = {b.loop_buffer.loop.id: b.loop_buffer for b in saved if b.loop_buffer is not None}
    kept = 0
    for number, filled in loops.items():
        carry = facts.buffers.loop_buffers.carried(filled.loop)
        stacked = filled.length * sum(unpadded_bytes(shape) or 0 for shape in carry)
        inputs = sum(
            live.size_bytes
            for live in facts.buffers.saved
            if live.loop_buffer is not None
            and live.loop_buffer.loop.id == number
            and is_layer_input(facts, live)
        )
        kept += max(0, stacked - inputs)
    return kept


def grouped_bytes(saved: Sequence[LiveBuffer]) -> int:
    """The bytes that jax.checkpoint around groups of steps or layers frees.

    Groups of sqrt(n) keep sqrt(n) inputs, and as many values within one group.
    """
    steps = [(b.size_bytes, b.loop_buffer.length) for b in saved if b.loop_buffer is not None]
    chains = steps or [(all_bytes(saved), len(saved))]
    return sum(max(0, size - int(2 * size / math.sqrt(length))) for size, length in chains)


def is_chain(facts: ProgramFacts, saved: Sequence[LiveBuffer]) -> bool:
    """Whether most residuals go into one product each, whose result is as large: one a layer.

    A checkpoint around each layer keeps what goes into it, which is as much.
    """
    families: dict[Family, list[LiveBuffer]] = {}
    for live in saved:
        families.setdefault(live.family, []).append(live)
    main = max(families.values(), key=all_bytes, default=[])
    if all_bytes(main) < LEAST_SHARE_OF_CHAIN * all_bytes(saved):
        return False
    links = [_weights(facts, live) for live in main]
    # The first and the last go into the loss, or come from the arguments.
    return is_one_per_layer(len(main)) and links.count(1) >= len(main) - 2


def _weights(facts: ProgramFacts, live: LiveBuffer) -> int:
    """By how many matrices the forward pass multiplies a residual, with a result as large.

    XLA may compute a product again: its copy has the same weights.
    """
    graph, dims = facts.buffers.graph, sorted(size for size in live.dims if size > 1)
    found = set()
    for user in graph.users(live.instruction):
        if any(
            graph.is_product(i)
            and not is_backward(i.metadata.op_name)
            and sorted(size for size in i.shape.dimensions if size > 1) == dims
            for i in (user, *graph.everything_in(user))
        ):
            others = [o for o in graph.operands(user) if o.id != live.instruction.id]
            matrices = [o for o in others if len([d for d in o.shape.dimensions if d > 1]) > 1]
            found |= {source_of(graph, o).id for o in matrices}
    return len(found)


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
        readers = buffers.loop_buffers.readers(live.loop_buffer)
        return any(_IN_LOOP.search(reader.metadata.op_name) for reader in readers)
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
