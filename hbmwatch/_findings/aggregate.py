"""What is largest where other findings do not suffice, and how the peak scales with the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Batch
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings import donation, training_state
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.fitting_batch import (
    batch_paths,
    fitting,
    has_batch,
    is_training_batch,
    smaller_batch,
)
from hbmwatch._findings.libraries import uses
from hbmwatch._findings.phrases import ERROR_1000, at_line, either, list_some
from hbmwatch._findings.random_bits import is_drawn
from hbmwatch._findings.rows import rows_of_outputs
from hbmwatch._findings.saved import is_layer_input
from hbmwatch._findings.verdict import freed_together, left_bytes, unnamed
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.types import PrimitiveType, float_bits

ADVICE = Advice(slug="aggregate", prior_weight=0.3, link=ERROR_1000, change="half-batch")
# A batch that scales less than half of the bytes over the limit is not what has to be smaller.
LEAST_SHARE_OF_OVER_LIMIT = 0.5
# Equal buffers that are more than half of what the other findings leave are named.
LEAST_SHARE_OF_REST = 0.5
# Beside other findings, a group below a tenth of the peak is not what is missing.
LEAST_SHARE_OF_PEAK = 0.1
# A dimension of so many is one of rows, not of features, and its length is no coincidence.
LEAST_ROWS = 4096
_UNKNOWN = "hbmwatch does not recognize"
_COMPLEX = (PrimitiveType.C64, PrimitiveType.C128)
_OF_COMPLEX = ("complex", "real", "imag", "conj")


def find(facts: ProgramFacts, others: Sequence[Finding] = ()) -> Finding | None:
    """How the bytes scale with the batch; None if nothing failed, or the other findings suffice.

    Args:
        facts: The failing program.
        others: The findings that are worth reporting.
    """
    if not facts.message.text and facts.limit_bytes is None:
        return None
    over = facts.over_limit_bytes
    if others and (over is None or freed_together(facts, others) >= over):
        return None
    batch = facts.batch
    scales = has_batch(facts)
    least = max(LEAST_SHARE_OF_OVER_LIMIT * (over or 0), facts.minimum_saving_bytes)
    if batch.scaling_bytes < least:
        scales = False
    largest = _largest_group(facts, others)
    if others and not scales and all_bytes(largest) < facts.minimum_saving_bytes:
        return None
    title, evidence = _describe_peak(facts, others, largest, scales)
    if scales:
        evidence = f"{evidence} {_describe_batch(facts, batch)}".strip()
    halved = int(facts.scaled_bytes(0.5))
    return ADVICE.finding(
        title=title,
        evidence=evidence,
        remedy=_remedy(facts, scales, largest),
        saves_bytes=batch.scaling_bytes - halved if scales else None,
        certainty="derived" if scales else "hint",
        change=None if scales else "",
        buffers=facts.scaling if scales else (),
    )


def _remedy(facts: ProgramFacts, scales: bool, largest: Sequence[LiveBuffer]) -> str:
    """What to change: the batch only where there is one, gradients only where they exist.

    Pieces do not make arguments and results smaller, and nobody maps over what a private function
    of a library makes, such as the rows of a sparse product.
    """
    kinds = {_kind(facts, live) for live in largest}
    changes = []
    if scales:
        trains = is_training_batch(facts)
        how = ": optax.MultiSteps" if uses(facts, "optax") else ""
        # A state with an accumulator shows that the program does so already.
        copies = facts.once(training_state.state_of).copies
        hint = trains and copies != training_state.COPIES_WITH_ACCUMULATOR
        micro = f" (accumulate gradients over micro-batches{how})" if hint else ""
        changes.append(f"{smaller_batch(facts)}{micro}")
    elif kinds == {"output"}:
        changes += [] if is_drawn(Candidate(facts, largest)) else ["return less"]
    elif "parameter" not in kinds and not any("jit(_" in live.name for live in largest):
        rows = _rows(facts, largest)
        blocks = f"blocks of the rows of {rows}" if rows else "blocks"
        trains = facts.buffers.differentiated
        checkpoint = ", with jax.checkpoint around the function of one block" if trains else ""
        how = f"jax.lax.map over {blocks}{checkpoint}"
        changes.append(f"compute the largest buffers in pieces ({how})")
    changes.append("shard over more devices")
    if any(float_bits(live.element_type) for live in largest) and not facts.once(_is_complex):
        changes.append("use a narrower dtype")
    text = either(changes)
    return f"{text[0].upper()}{text[1:]}."


def _is_complex(facts: ProgramFacts) -> bool:
    """Whether a program computes complex numbers, which have no narrower dtype.

    XLA for TPU computes their two parts: the names of the operations are left.
    """
    operations = {name.rpartition("/")[2] for name in facts.buffers.op_names}
    types = {live.element_type for live in facts.live} | {a.element_type for a in facts.arguments}
    return not (operations.isdisjoint(_OF_COMPLEX) and types.isdisjoint(_COMPLEX))


def _kind(facts: ProgramFacts, live: LiveBuffer) -> str:
    """The kind of a buffer; what only uses the memory of an output is temporary."""
    is_output = live.op.kind == "output"
    return "temporary" if is_output and not facts.buffers.is_result(live) else live.op.kind


def _rows(facts: ProgramFacts, largest: Sequence[LiveBuffer]) -> str:
    """The arguments whose first dimensions the largest buffers begin with; "" for none."""
    dims = largest[0].dims if largest else ()
    known = (a for a in facts.arguments if a.number not in facts.state)
    return list_some(
        argument.path
        for argument in known
        if len(dims) > 1
        and argument.dims[:-1]
        and math.prod(argument.dims[:-1]) >= LEAST_ROWS
        and argument.dims[:-1] == dims[: len(argument.dims) - 1]
    )


def _describe_peak(
    facts: ProgramFacts, others: Sequence[Finding], largest: Sequence[LiveBuffer], scales: bool
) -> tuple[str, str]:
    """Title and evidence: the equal buffers that are most of the peak, or that there are none."""
    over = facts.over_limit_bytes
    peak = format_size(facts.peak_bytes)
    total = all_bytes(largest)
    most = total > LEAST_SHARE_OF_REST * left_bytes(facts, others)
    if not most or total < LEAST_SHARE_OF_PEAK * facts.peak_bytes:
        limit = f" ({format_size(over)} over the limit)" if over else ""
        of = " of the other buffers" if others else ""
        which = f"No single cause{of} is known{'' if others else limit}"
        batch = f"{smaller_batch(facts)} or use more devices" if scales else "use more devices"
        batch = batch.replace("use a smaller batch or use", "use a smaller batch or")
        what = "the other buffers" if others else "its buffers"
        evidence = "" if scales else f"The peak is {peak}. {_UNKNOWN} what {what} are for."
        return f"{which}: {batch}", evidence
    first, count = largest[0], len(largest)
    share = round(100 * all_bytes(largest) / facts.peak_bytes)
    kind = "argument" if first.op.kind == "parameter" else _kind(facts, first)
    equal = plural(count, f"equal {kind}")
    subject = f"A single {kind} accounts" if count == 1 else f"{equal} account"
    shape = first.op.shape.partition("{")[0]
    shape = f"{shape} {first.name}" if first.op.kind == "parameter" else shape
    title = f"{subject} for {share}% of the peak: {shape}{at_line(largest)}"
    take, these, they = (
        ("It takes", "this buffer is", "It is")
        if count == 1
        else ("They take", "these buffers are", "The first is")
    )
    what = f". {_UNKNOWN} what {these} for"
    saved = {live.op.instruction for live in facts.buffers.saved}
    if all(
        live.op.instruction in saved or (live.forward and is_layer_input(facts, live))
        for live in largest
    ):
        what = f" and {'is' if count == 1 else 'are'} kept for the backward pass"
    elif is_drawn(Candidate(facts, largest)):
        what = f" and {'holds' if count == 1 else 'hold'} what a random generator draws"
    evidence = f"{take} {format_size(all_bytes(largest))} of {peak}{what}."
    if first.op.kind == "parameter" or not first.name:
        return title, evidence
    made = "made for" if first.inferred and first.loop_buffer is None else "made by"
    return title, f"{evidence} {they} {made} {first.name}."


def _largest_group(facts: ProgramFacts, others: Sequence[Finding]) -> list[LiveBuffer]:
    """The equal buffers with the most bytes that no other finding is about."""
    names = unnamed(facts, others)
    if any(other.slug == donation.ADVICE.slug for other in others):
        # Their old values are named, and one of the two is freed.
        names -= {*rows_of_outputs(facts, (output for _, output in donation.undonated(facts)))}
    groups: dict[object, list[LiveBuffer]] = {}
    for live in facts.live:
        if live.op.instruction in names:
            key = (_kind(facts, live), live.element_type, live.dims)
            groups.setdefault(key, []).append(live)
    return max(groups.values(), key=all_bytes, default=[])


def _describe_batch(facts: ProgramFacts, batch: Batch) -> str:
    """Evidence: how much scales with the batch, and which batch should fit."""
    paths, fits = batch_paths(facts), fitting(facts)
    size = f"the batch size ({paths}, " if is_training_batch(facts) else f"the rows of {paths} ("
    return (
        f"{format_size(batch.scaling_bytes)} of the {format_size(facts.peak_bytes)} peak scales "
        f"with {size}{batch.length} per device){'; ' if fits else ''}{fits}."
    )
