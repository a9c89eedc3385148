"""Findings on what a forward pass keeps for the backward pass."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import Family, LiveBuffer, is_recomputed
from hbmwatch._findings.phrases import CHECKPOINT, counted, lines
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

# Op_names of a backward pass under jax.checkpoint: anywhere, and in a loop's body.
_UNDER = re.compile(r"transpose\(.*/(checkpoint/|remat2)")
_IN_LOOP = re.compile(r"transpose\(.*/while/body/.*checkpoint/")
# Of so many layers it pays to keep the inputs of groups alone.
_MOST, _MANY_LAYERS = 0.5, 32
_AROUND_STEP = (
    "jax.checkpoint around the whole train step, or around the whole loss: that computes all "
    "layers again at once"
)


def residuals(evidence: ProgramFacts) -> Finding | None:
    """Buffers of the forward pass that wait for the backward pass, without a jax.checkpoint."""
    wrong = {
        live.family: _is_layer_input(evidence, live) or _kept_by_policy(evidence, live)
        for live in {live.family: live for live in evidence.flow.saved}.values()
    }
    saved = [live for live in evidence.flow.saved if not wrong[live.family]]
    saves = freed(saved)
    if not saves:
        return None
    total = sum(live.size_bytes for live in saved)
    loop = max((live.stack.length for live in saved if live.stack is not None), default=0)
    how = f"stacked by a scan of {loop} steps" if loop else "one set for each layer"
    again = any(".remat" in live.op.instruction for live in evidence.live)
    return Finding(
        slug="residuals",
        title=f"save less for the backward pass: jax.checkpoint (remat) around the layer"
        f"{_at(saved)}",
        evidence=f"{counted(len(saved), 'buffer')}, {format_size(total)} at the peak: made by the "
        f"forward pass (jvp) and kept for the backward pass, {how}{_made_at(saved)}"
        + (
            "; the compiler rematerialises already (.remat), so the program wants even more"
            if again
            else ""
        ),
        remedy="Put jax.checkpoint (jax.remat; flax nn.remat) around "
        + ("the body of the scan" if loop else "each layer")
        + ", with its default policy, which saves nothing but the layer's inputs.",
        saves_bytes=saves,
        certainty="derived",
        link=CHECKPOINT,
        will_not_help=f"{_AROUND_STEP}; policies such as everything_saveable or dots_saveable "
        "save much of it after all",
    )


def checkpoint(evidence: ProgramFacts) -> Finding | None:
    """A jax.checkpoint that is there and too coarse, or whose policy saves what it should not."""
    if not evidence.flow.checkpointed:
        return None
    deep = [
        live
        for live in evidence.flow.saved
        if _layers(evidence, live) >= _MANY_LAYERS and _is_layer_input(evidence, live)
    ]
    if sum(live.size_bytes for live in deep) >= _MOST * evidence.peak_bytes:
        return _every_input(evidence, deep)
    again = [
        live
        for live in evidence.live
        if live.op.kind == "temporary" and is_recomputed(live.context)
    ]
    coarse = [live for live in again if _is_shared(evidence, live)]
    policy = [live for live in evidence.flow.saved if _kept_by_policy(evidence, live)]
    if freed(coarse) >= freed(policy):
        return _coarse(coarse) if freed(coarse) else None
    return _policy(policy) if freed(policy) else None


def _coarse(again: Sequence[LiveBuffer]) -> Finding:
    """The finding on a checkpoint around too much."""
    total = sum(live.size_bytes for live in again)
    return Finding(
        slug="checkpoint",
        title=f"the jax.checkpoint (remat) is too coarse: it computes all layers again at once"
        f"{_at(again)}",
        evidence=f"{counted(len(again), 'buffer')} of rematted_computation, {format_size(total)}: "
        f"alive together at the peak{_made_at(again)}",
        remedy="Put jax.checkpoint around each layer (the body of the scan) and not around all "
        "layers, so that one layer is computed again at a time.",
        saves_bytes=freed(again),
        certainty="derived",
        link=CHECKPOINT,
        will_not_help=f"{_AROUND_STEP}; the policies None and nothing_saveable are the same",
    )


def _every_input(evidence: ProgramFacts, inputs: Sequence[LiveBuffer]) -> Finding:
    """The finding on a checkpoint around each layer, of so many that their inputs are the peak."""
    total = sum(live.size_bytes for live in inputs)
    layers = _layers(evidence, max(inputs, key=lambda live: live.size_bytes))
    groups = math.isqrt(layers)
    return Finding(
        slug="checkpoint",
        title=f"the jax.checkpoint (remat) around each layer keeps each layer's input{_at(inputs)}",
        evidence=f"{counted(len(inputs), 'buffer')}, {format_size(total)}: the inputs of {layers} "
        f"layers, which are most of the peak{_made_at(inputs)}",
        remedy=f"Nest it: a scan over about {groups} groups, with jax.checkpoint around each group "
        "as well as around each layer in it, keeps the inputs of the groups and of one group's "
        "layers. Or shard the activations (sequence parallelism), or offload them to the host.",
        saves_bytes=total - 2 * total // groups,
        certainty="derived",
        link=CHECKPOINT,
        will_not_help="another policy: the inputs of what is computed again are always kept",
    )


def _layers(evidence: ProgramFacts, live: LiveBuffer) -> int:
    """Of how many layers a buffer, or it and its equals, are the inputs."""
    return evidence.flow.families[live.family] if live.stack is None else live.stack.length


def _policy(saved: Sequence[LiveBuffer]) -> Finding:
    """The finding on a checkpoint with a policy that saves much."""
    total = sum(live.size_bytes for live in saved)
    return Finding(
        slug="checkpoint",
        title=f"the policy of jax.checkpoint (remat) saves {format_size(total)}{_at(saved)}",
        evidence=f"{counted(len(saved), 'buffer')}, {format_size(total)}: inside of checkpointed "
        f"layers, and saved for the backward pass all the same, by the policy{_made_at(saved)}",
        remedy="Use a policy that saves less: none at all (nothing_saveable), or "
        "save_only_these_names for the few that are dear to compute.",
        saves_bytes=freed(saved),
        certainty="derived",
        link=CHECKPOINT,
        will_not_help="everything_saveable and dots_saveable (checkpoint_dots) save nearly all",
    )


def freed(saved: Sequence[LiveBuffer]) -> int:
    """What computing again would free, at most: all layers but one.

    Of a stack all but one entry, of a family of equal buffers all but one; of the buffers that
    are like no other all but the largest.
    """
    stacks = sum(b.size_bytes - b.size_bytes // b.stack.length for b in saved if b.stack)
    families: dict[Family, list[int]] = {}
    for live in saved:
        if live.stack is None:
            families.setdefault(live.family, []).append(live.size_bytes)
    layers = [sizes for sizes in families.values() if len(sizes) > 1]
    others = [sizes[0] for sizes in families.values() if len(sizes) == 1]
    return stacks + sum(sum(sizes) - max(sizes) for sizes in [*layers, others] if sizes)


def _is_shared(evidence: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a recomputed buffer is one of a stack, or waits with others of its family.

    What a loop of the backward pass computes again, step by step, is one group of layers.
    """
    if live.stack is not None:
        before = live.context.partition("rematted_computation")[0]
        return "/while/body/" not in before.rpartition("transpose(")[2]
    return evidence.flow.families[live.family] > 2


def _kept_by_policy(evidence: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a policy of jax.checkpoint saved a buffer.

    JAX rounds what a policy saves (reduce_precision), which the GPU compiler takes out again; and
    what reads it in the backward pass is under the checkpoint.
    """
    flow = evidence.flow
    if not flow.checkpointed or _is_layer_input(evidence, live):
        return False
    if "reduce_precision" in live.name or "reduce-precision" in flow.origin(live).chain:
        return True
    if live.stack is not None:
        return any(_IN_LOOP.search(name) for name in flow.op_names)
    return any(_UNDER.search(reader.metadata.op_name) for reader in flow.uses(live))


def _is_layer_input(evidence: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a buffer is the input of a layer, which a checkpoint keeps too.

    A loop stacks what it carries; in a checkpointed layer what is computed again reads it.
    """
    if live.stack is None:
        return any(is_recomputed(user.metadata.op_name) for user in evidence.flow.uses(live))
    return evidence.flow.stacks.written(live.stack) is live.stack.update or live.name.endswith(
        "dynamic_update_slice"
    )


def _at(lives: Sequence[LiveBuffer]) -> str:
    """ " at train.py:88", the line with the most bytes."""
    where = lines(lives, 1)
    return f" at {where.split(' and ')[0]}" if where else ""


def _made_at(lives: Sequence[LiveBuffer]) -> str:
    """ ", made at train.py:88, train.py:90"."""
    where = lines(lives, 3)
    return f", made at {where}" if where else ""
