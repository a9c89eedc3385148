"""Bytes that tiled layouts add to the elements of buffers."""

from __future__ import annotations

import re

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import residuals
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import ERROR_1000
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

_TILE = re.compile(r"T\((?:(\d+),)?(\d+)\)")
_GENERAL_REMEDY = (
    "Make the two minor dimensions multiples of 8 and 128 (pad them, or merge small dimensions)."
)
PRIOR_WEIGHT = 2.0
# Where more than half of the padding is in residuals, jax.checkpoint frees it with the residuals.
SHARE_IN_RESIDUALS = 0.5


def _weigh(facts: ProgramFacts, finding: Finding) -> float:
    """The weight: below that of the residuals where most of the padding is in residuals."""
    in_residuals = sum(live.op.padding_bytes for live in facts.buffers.saved)
    if in_residuals > SHARE_IN_RESIDUALS * (finding.saves_bytes or 0):
        return residuals.ADVICE.prior_weight / 2
    return PRIOR_WEIGHT


ADVICE = Advice(
    slug="padding",
    prior_weight=PRIOR_WEIGHT,
    link=ERROR_1000,
    will_not_help="a smaller batch: the padding stays the same share of each buffer",
    # Some padding is in every program: it counts in full only where it is half of the peak.
    least_share_of_peak=0.5,
    weigh=_weigh,
)


def find(facts: ProgramFacts) -> Finding | None:
    """Padding that is worth avoiding."""
    # The row of small buffers has no instruction, and XProf counts it as all padding.
    ops = [op for op in facts.summary.ops if op.instruction]
    total = sum(op.padding_bytes for op in ops)
    worst = max(ops, key=lambda op: op.padding_bytes, default=None)
    if worst is None or total < facts.minimum_saving_bytes:
        return None
    reason, remedy = explain_padding(worst)
    shape = worst.shape.partition("{")[0]
    return ADVICE.finding(
        title=f"Padding: tiled layouts add {format_size(total)} ({worst.expansion:.1f}x for {shape}"
        f"{' at ' + worst.source if worst.source else ''})",
        evidence=f"{format_size(total)} of the peak is padding. {worst.shape} takes "
        f"{format_size(worst.size_bytes)} for {format_size(worst.unpadded_bytes)} of "
        f"elements{reason}.",
        remedy=remedy,
        saves_bytes=total,
    )


def explain_padding(op: PeakOp) -> tuple[str, str]:
    """The dimension of a buffer that is padded, as words, and what to change."""
    dims = [int(size) for size in re.findall(r"\d+", op.shape.partition("[")[2].partition("]")[0])]
    layout = re.search(r"\{([\d,]+)", op.shape)
    order = [int(i) for i in layout[1].split(",")] if layout else []
    tiled = _TILE.search(op.shape)
    if not order or tiled is None or max(order) >= len(dims):
        return "", _GENERAL_REMEDY
    tile = [int(size) for size in (tiled[2], tiled[1]) if size]
    index, multiple = max(
        zip(order, tile),
        key=lambda pair: -(-dims[pair[0]] // pair[1]) * pair[1] / max(dims[pair[0]], 1),
        default=(0, 1),
    )
    reason = f": dimension {index} ({dims[index]}) is padded to a multiple of {multiple}"
    largest = max(range(len(dims)), key=lambda i: dims[i])
    if largest == index:
        return reason, _GENERAL_REMEDY
    return reason, (
        f"Put the large dimension last: [{dims[index]}, {dims[largest]}] instead of "
        f"[{dims[largest]}, {dims[index]}] (transpose or reshape early), or merge the small "
        "dimension with another one, so that the layout adds no padding."
    )
