"""Values of the forward pass that are kept for the backward pass, without jax.checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings import classify
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.fitting_batch import has_training_batch
from hbmwatch._findings.layers import Call, around, find_layer
from hbmwatch._findings.libraries import IN_GROUPS, offered
from hbmwatch._findings.phrases import at_line, at_lines
from hbmwatch._findings.saved import (
    AROUND_STEP,
    CHECKPOINT,
    carried_bytes,
    freed_bytes,
    grouped_bytes,
    is_chain,
    is_kept_by_policy,
    is_layer_input,
)
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

ADVICE = Advice(
    slug="residuals",
    prior_weight=1.0,
    link=CHECKPOINT,
    will_not_help=f"{AROUND_STEP}; the policy everything_saveable",
)
# Where a tenth of the residuals are products, a policy that saves these saves much.
LEAST_SHARE_OF_PRODUCTS = 0.1
_SAVES_PRODUCTS = (
    f"{AROUND_STEP}; policies such as everything_saveable or dots_saveable, which still save much "
    "of it"
)
# What has equal residuals without a scan: layers, or the steps of a loop in Python.
REPEATED = "layer or step"
EACH = f"each {REPEATED}"
_SMALLER_BATCH = " Or use a smaller batch, with gradients accumulated over micro-batches."
# Groups are more work than single layers: they have to free twice as much.
MORE_IN_GROUPS = 2


def find(facts: ProgramFacts) -> Finding | None:
    """Residuals that jax.checkpoint around each layer would recompute."""
    saved = _freed_by_checkpoint(facts)
    if not saved:
        return None
    steps = _steps(saved)
    part = _part(facts, saved, steps)
    chain = is_chain(facts, saved)
    freed = 0 if chain else max(0, freed_bytes(saved) - carried_bytes(facts, saved))
    grouped = grouped_bytes(saved) if steps or chain else 0
    if grouped > MORE_IN_GROUPS * freed:
        return _in_groups(facts, saved, steps, grouped)
    if not freed:
        return None
    how = f", {_stacked(saved, steps)}" if steps else ""
    how = how or (f", one set per {REPEATED}" if part == EACH else "")
    layer = find_layer(facts, saved)
    remat = any(".remat" in live.op.instruction for live in facts.live)
    return ADVICE.finding(
        title=f"Rematerialize: put jax.checkpoint (remat) around {around(layer, saved, part)}",
        evidence=f"{_kept(saved)}{how}."
        + (
            " XLA already rematerializes some values (.remat), so the real demand is even higher."
            if remat
            else ""
        ),
        remedy="Put jax.checkpoint (jax.remat; flax nn.remat) around "
        + f"{part}, with its default policy, which saves only what goes into it."
        + _if_all(layer.call, part)
        + ("" if layer.is_inline else offered(facts, ADVICE.slug, saved)),
        saves_bytes=freed,
        buffers=saved,
        will_not_help=_SAVES_PRODUCTS if _are_products(saved) else None,
    )


def _are_products(saved: Sequence[LiveBuffer]) -> bool:
    """Whether many residuals are results of matrix products, which dots_saveable would keep."""
    products = [live for live in saved if live.name.endswith("dot_general")]
    return all_bytes(products) >= LEAST_SHARE_OF_PRODUCTS * all_bytes(saved)


def _steps(saved: Sequence[LiveBuffer]) -> int:
    """The length of the scans that stack most bytes of the residuals; 0 if none does."""
    sizes: dict[int, int] = {}
    for live in saved:
        if live.loop_buffer is not None:
            length = live.loop_buffer.length
            sizes[length] = sizes.get(length, 0) + live.size_bytes
    return max(sizes, key=sizes.__getitem__, default=0)


def _stacked(saved: Sequence[LiveBuffer], steps: int) -> str:
    """How residuals are stacked; some by other scans, or by none."""
    ours = [b for b in saved if b.loop_buffer is not None and b.loop_buffer.length == steps]
    some = "" if len(ours) == len(saved) else f"{format_size(all_bytes(ours))} of them "
    return f"{some}stacked by a scan of {steps} steps"


def _freed_by_checkpoint(facts: ProgramFacts) -> list[LiveBuffer]:
    """The residuals that jax.checkpoint frees, without layers' inputs and what a policy keeps."""
    first = {live.family: live for live in facts.buffers.saved}
    needed = {
        family
        for family, live in first.items()
        if is_layer_input(facts, live) or is_kept_by_policy(facts, live)
    }
    return [
        live
        for live in facts.buffers.saved
        if live.family not in needed and not _is_large_value(facts, live)
    ]


def _in_groups(facts: ProgramFacts, saved: Sequence[LiveBuffer], steps: int, freed: int) -> Finding:
    """The finding on residuals that are what goes into each step or layer."""
    number = steps or len(saved)
    groups = math.isqrt(number)
    what, one = ("steps of the scan", "step") if steps else ("layers", "layer")
    how_many = _stacked(saved, steps) if steps else "one for each layer"
    keeps = (
        f"keeps what goes into it, {format_size(carried_bytes(facts, saved))} in all"
        if steps
        else "keeps what goes into it, which is most of these"
    )
    how = (
        f"Scan over about {groups} groups of steps (a scan in a scan), with jax.checkpoint around "
        "the inner scan"
        if steps
        else f"Put jax.checkpoint around each {groups} consecutive layers"
    )
    return ADVICE.finding(
        title=f"Rematerialize: put jax.checkpoint (remat) around groups of {what}{at_line(saved)}",
        evidence=f"{_kept(saved)}, {how_many}. A checkpoint around a single {one} {keeps}.",
        remedy=f"{how}: it keeps what goes into each group, and recomputes one group at a time."
        + (_SMALLER_BATCH if has_training_batch(facts) else "")
        + ("" if steps else offered(facts, IN_GROUPS, saved)),
        saves_bytes=freed,
        buffers=saved,
        will_not_help=f"{AROUND_STEP}; jax.checkpoint around each {one}",
    )


def _kept(saved: Sequence[LiveBuffer]) -> str:
    """What the residuals are, as the beginning of a sentence."""
    are = "is a residual" if len(saved) == 1 else "are residuals"
    return (
        f"{plural(len(saved), 'buffer')} ({format_size(all_bytes(saved))} at the peak) {are}: "
        f"computed in the forward pass{at_lines(saved)} and kept for the backward pass"
    )


def _if_all(call: Call | None, part: str) -> str:
    """What to do if a function that is named as the layer has the loop over the layers in it."""
    if call is None or part != EACH:
        return ""
    return f" If one call of `{call.function}()` runs several layers, put it around each of them."


def _part(facts: ProgramFacts, saved: Sequence[LiveBuffer], steps: int) -> str:
    """What to checkpoint: equal residuals may be of layers with weights of their own, or of steps.

    Args:
        facts: The failing program.
        saved: The residuals.
        steps: The length of the scan that stacks them; 0 if none does.
    """
    if steps:
        return "the body of the scan"
    repeated = any(facts.buffers.families[live.family] > 1 for live in saved)
    return EACH if repeated else "the computation"


def _is_large_value(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether another finding is about a buffer, such as the logits: it belongs to no layer."""
    alone = facts.buffers.families[live.family] == 1 and live.loop_buffer is None
    if not alone or live.size_bytes < facts.least_part_bytes:
        return False
    return classify.classify(Candidate(facts, [live], is_residual=True)) is not None
