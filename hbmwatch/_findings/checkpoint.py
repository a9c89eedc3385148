"""A jax.checkpoint that covers too much, saves too much, or covers too little of many layers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import Graph
from hbmwatch._analysis.live_buffers import (
    Family,
    LiveBuffer,
    is_forward,
    is_one_per_layer,
    is_recomputed,
)
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.phrases import at_line, at_lines
from hbmwatch._findings.saved import (
    AROUND_STEP,
    CHECKPOINT,
    freed_bytes,
    is_kept_by_policy,
    is_layer_input,
)
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.protos import HloInstructionProto

ADVICE = Advice(slug="checkpoint", prior_weight=1.5, link=CHECKPOINT)
# Op_names of a checkpointed layer in a loop that is checkpointed as a whole.
_NESTED = re.compile(r"checkpoint/while/body/.*checkpoint/")
# The scope of a layer in the op_name of what is recomputed: "rematted_computation/Block_3/".
_SCOPE = re.compile(r"rematted_computation/(?:[^/]+/)*?(\w*\d)/")
# One checkpoint keeps its input, and a result may be as large; each layer's keeps an input, too.
LEAST_INPUTS = 3
_HOLDERS = frozenset(("while", "tuple"))
# Nesting is worth the work only where the inputs of the layers are most of the peak.
LEAST_SHARE_OF_INPUTS = 0.5
# Groups of sqrt(32) layers keep about 2 * sqrt(32) = 11 inputs, a third of 32.
LEAST_NESTED_LAYERS = 32


def find(facts: ProgramFacts) -> Finding | None:
    """What is wrong with the jax.checkpoint of a program; None where it has none."""
    if not facts.buffers.checkpointed:
        return None
    inputs = [
        live
        for live in facts.buffers.saved
        if _layers(facts, live) >= LEAST_NESTED_LAYERS and is_layer_input(facts, live)
    ]
    fill = all_bytes(inputs) >= LEAST_SHARE_OF_INPUTS * facts.peak_bytes
    if fill and not any(_is_nested(facts, live) for live in inputs):
        return _every_input(facts, inputs)
    coarse = [
        live
        for live in facts.live
        if live.op.kind == "temporary" and is_recomputed(live.context) and _is_shared(facts, live)
    ]
    coarse = [] if coarse and _saved_inputs(facts) >= LEAST_INPUTS else _of_several(coarse)
    by_policy = [live for live in facts.buffers.saved if is_kept_by_policy(facts, live)]
    if freed_bytes(coarse) >= freed_bytes(by_policy):
        return _coarse(_with_others(facts, coarse)) if freed_bytes(coarse) else None
    return _policy(by_policy)


def _of_several(recomputed: Sequence[LiveBuffer]) -> list[LiveBuffer]:
    """The recomputed buffers, without equal ones that are all of one layer, as scopes show."""
    scopes: dict[Family, set[str]] = {}
    for live in recomputed:
        scope = _SCOPE.search(live.context)
        scopes.setdefault(live.family, set()).add(scope[1] if scope is not None else "")
    return [b for b in recomputed if len(scopes[b.family]) > 1 or "" in scopes[b.family]]


def _saved_inputs(facts: ProgramFacts) -> int:
    """The number of equal values of the forward pass from which something is recomputed.

    One checkpoint around all layers starts from one of them.
    """
    graph = facts.buffers.graph
    found: dict[tuple[int, ...], set[int]] = {}
    for computation in graph.running:
        for reader in facts.program.inside(computation):
            if reader.opcode in _HOLDERS or not any(map(is_recomputed, _names(graph, reader))):
                continue
            for value in map(graph.copied, graph.operands(reader)):
                if value is not None and len(value.shape.dimensions) > 1:
                    if _is_of_forward_pass(graph, value):
                        found.setdefault(tuple(value.shape.dimensions), set()).add(value.id)
    return max(map(len, found.values()), default=0)


def _is_of_forward_pass(graph: Graph, value: HloInstructionProto) -> bool:
    """Whether the forward pass alone computes a value, and no jax.checkpoint does so again."""
    made = value
    if value.opcode == "get-tuple-element":
        made = graph.first(value) or value
    names = _names(graph, made)
    return any(map(is_forward, names)) and not any("transpose(" in name for name in names)


def _names(graph: Graph, instruction: HloInstructionProto) -> set[str]:
    """The op_names of an instruction, and of what is inside of it."""
    return {i.metadata.op_name for i in (instruction, *graph.everything_in(instruction))}


def _with_others(facts: ProgramFacts, coarse: Sequence[LiveBuffer]) -> list[LiveBuffer]:
    """All temporaries that the checkpoints of some recomputed ones compute again.

    Those that have no equal are recomputed with them. A loop's are not where it recomputes a group.
    """
    known = {live.op.instruction for live in coarse}
    checkpoints = set(map(_checkpoint_of, coarse))
    return [
        live
        for live in facts.live
        if live.op.instruction in known
        or (
            live.op.kind == "temporary"
            and live.loop_buffer is None
            and is_recomputed(live.context)
            and _checkpoint_of(live) in checkpoints
        )
    ]


def _checkpoint_of(live: LiveBuffer) -> str:
    """The op_name up to the checkpoint that a buffer is recomputed under."""
    return live.context.partition("rematted_computation")[0]


def _coarse(recomputed: Sequence[LiveBuffer]) -> Finding:
    """The finding on a checkpoint around too much."""
    filled = [(b.size_bytes, b.loop_buffer.length) for b in recomputed if b.loop_buffer is not None]
    _, steps = max(filled, default=(0, 0))
    what = f"all {steps} steps of a scan" if steps else "several layers or parts"
    layer = "layer (the body of the scan)" if steps else "layer, or around each part of one"
    return ADVICE.finding(
        title=f"A jax.checkpoint covers too much: {what}{at_line(recomputed)} are recomputed "
        "at once",
        evidence=f"{plural(len(recomputed), 'buffer')} of rematted_computation "
        f"({format_size(all_bytes(recomputed))}), computed{at_lines(recomputed)}, exist at the "
        "same time at the peak.",
        remedy=f"Put jax.checkpoint around each {layer}, inside of this checkpoint or instead of "
        "it, so that one of them is recomputed at a time. Inside of it, the inputs of the layers "
        "that it covers are kept at a time; instead of it, those of all layers.",
        saves_bytes=freed_bytes(recomputed),
        buffers=recomputed,
        will_not_help=f"{AROUND_STEP}; policy=nothing_saveable, which is the same as no policy",
    )


def _every_input(facts: ProgramFacts, inputs: Sequence[LiveBuffer]) -> Finding:
    """The finding on the kept inputs of very many checkpointed layers."""
    total = all_bytes(inputs)
    layers = _layers(facts, max(inputs, key=lambda live: live.size_bytes))
    groups = math.isqrt(layers)
    return ADVICE.finding(
        title=f"Nest jax.checkpoint: the saved inputs of {layers} layers or steps fill the peak"
        f"{at_line(inputs)}",
        evidence=f"The checkpointed inputs of {layers} layers or steps take {format_size(total)} "
        f"({plural(len(inputs), 'buffer')} computed{at_lines(inputs)}), which is most of the peak.",
        remedy=f"Scan over about {groups} groups of them, with jax.checkpoint around each group "
        "and around each part of it. This keeps the inputs of the groups and those within one "
        "group. Or shard the activations (sequence parallelism), or offload them to the host.",
        saves_bytes=total - 2 * total // groups,
        buffers=inputs,
        will_not_help="another policy: the inputs of a recomputed layer are always kept",
    )


def _policy(saved: Sequence[LiveBuffer]) -> Finding:
    """The finding on a policy that saves too much."""
    size = format_size(all_bytes(saved))
    return ADVICE.finding(
        title=f"Save less: the policy of jax.checkpoint (remat) keeps {size}{at_line(saved)}",
        evidence=f"The policy saves {plural(len(saved), 'buffer')} ({size}) of checkpointed layers "
        f"for the backward pass, computed{at_lines(saved)}.",
        remedy="Use a policy that saves less: none at all (nothing_saveable), or "
        "save_only_these_names for the few values that are expensive to recompute.",
        saves_bytes=freed_bytes(saved),
        buffers=saved,
        will_not_help="everything_saveable or dots_saveable (checkpoint_dots): both save nearly "
        "all",
    )


def _is_nested(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether the checkpoint whose inputs a buffer has goes around several layers.

    These are a loop that carries what goes into each of them; a loop over blocks within a layer
    carries something else.
    """
    filled, buffers = live.loop_buffer, facts.buffers
    if filled is None:
        return any(_NESTED.search(name) for name in buffers.op_names)
    step = [size for size in live.dims[1:] if size > 1]
    inner = (loop for loop in buffers.graph.loops if _is_inside(facts, loop, filled.loop))
    return any(
        [size for size in shape.dimensions if size > 1] == step
        for loop in inner
        for shape in buffers.loop_buffers.carried(loop)
    )


def _is_inside(facts: ProgramFacts, loop: HloInstructionProto, outer: HloInstructionProto) -> bool:
    """Whether a loop is in the body of another one."""
    around, _ = facts.buffers.graph.loop_of(loop)
    return around is not None and around.id == outer.id


def _layers(facts: ProgramFacts, live: LiveBuffer) -> int:
    """The number of layers whose inputs a buffer holds, together with its equals."""
    if live.loop_buffer is not None:
        return live.loop_buffer.length
    return facts.buffers.families[live.family]


def _is_shared(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a recomputed buffer exists at the same time as those of other layers.

    A loop in the backward pass recomputes one group of layers per step, on purpose.
    """
    if live.loop_buffer is not None:
        before = live.context.partition("rematted_computation")[0]
        return "/while/body/" not in before.rpartition("transpose(")[2]
    return is_one_per_layer(facts.buffers.families[live.family])
