"""No single cause: what is largest, and how the peak scales with the batch."""

from __future__ import annotations

from hbmwatch._analysis.facts import Batch, ProgramFacts
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import ERROR_1000, list_some
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

ADVICE = Advice(slug="aggregate", prior_weight=0.1, link=ERROR_1000, change="half-batch")
# A batch that scales less than a tenth of the bytes over the limit cannot make the program fit.
LEAST_SHARE_OF_OVER_LIMIT = 0.1
# 2% is left for layouts and fragmentation, which do not scale with the batch.
USABLE_SHARE_OF_LIMIT = 0.98
# A buffer that is more than half of the peak is named.
LEAST_SHARE_OF_PEAK = 0.5


def find(facts: ProgramFacts) -> Finding | None:
    """How the bytes scale with the batch; None if nothing failed."""
    if not facts.message.text and facts.limit_bytes is None:
        return None
    batch, over = facts.batch, facts.over_limit_bytes
    scales = bool(batch.arguments)
    if batch.scaling_bytes < LEAST_SHARE_OF_OVER_LIMIT * (over or 0):
        scales = False
    title, evidence = _describe_peak(facts)
    if scales:
        evidence = _describe_batch(facts, batch)
    halved = int(facts.scaled_bytes(0.5))
    return ADVICE.finding(
        title=title,
        evidence=evidence,
        remedy="Use a smaller batch (accumulate gradients over micro-batches), shard over more "
        "devices, or use a narrower dtype.",
        saves_bytes=batch.scaling_bytes - halved if scales else None,
        certainty="derived" if scales else "hint",
    )


def _describe_peak(facts: ProgramFacts) -> tuple[str, str]:
    """Title and evidence: the buffer that is most of the peak, or that there is none."""
    over = facts.over_limit_bytes
    peak = format_size(facts.peak_bytes)
    largest = max(facts.live, key=lambda live: live.size_bytes, default=None)
    if largest is None or largest.size_bytes <= LEAST_SHARE_OF_PEAK * facts.peak_bytes:
        limit = f" ({format_size(over)} over the limit)" if over else ""
        return (
            f"No single cause{limit}: use a smaller batch or more devices",
            f"The peak is {peak}, and its buffers match no known pattern.",
        )
    share = round(100 * largest.size_bytes / facts.peak_bytes)
    kind = "argument" if largest.op.kind == "parameter" else largest.op.kind
    where = f" at {largest.source}" if largest.source else ""
    title = (
        f"A single {kind} accounts for {share}% of the peak: "
        f"{largest.op.shape.partition('{')[0]}{where}"
    )
    evidence = f"It takes {format_size(largest.size_bytes)} of {peak} and matches no known pattern."
    return title, evidence + (f" It is created by {largest.name}." if largest.name else "")


def _describe_batch(facts: ProgramFacts, batch: Batch) -> str:
    """Evidence: how much scales with the batch, and which batch should fit."""
    paths = list_some(argument.path for argument in batch.arguments)
    length = fitting_length(facts)
    fits = f"; a batch of {length} instead of {batch.length} should fit" if length else ""
    return (
        f"{format_size(batch.scaling_bytes)} of the {format_size(facts.peak_bytes)} peak scales "
        f"with the batch size ({paths}, {batch.length} per device){fits}."
    )


def fitting_length(facts: ProgramFacts) -> int:
    """The largest batch that should fit; 0 if there is none, or if no limit is known."""
    limit, over, length = facts.limit_bytes, facts.over_limit_bytes, facts.batch.length
    if limit is None or not over:
        return 0
    fixed = limit + over - facts.scaled_bytes(1.0)
    room = USABLE_SHARE_OF_LIMIT * limit - fixed
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        if facts.scaled_bytes(middle / length) <= room:
            low = middle
        else:
            high = middle
    return low
