"""Bytes that tiled layouts add to the elements of buffers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import layout_copy, residuals
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import ERROR_1000
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

_TILE = re.compile(r"T\((?:(\d+),)?(\d+)\)")
_GENERAL_REMEDY = (
    "Merge small dimensions (reshape), so that the two minor dimensions are multiples of 8 and 128."
)
PRIOR_WEIGHT = 2.0
# Every program has some padding; it is seldom the cause where no buffer is mostly padding.
MOSTLY_PADDING = 2.0
# From here on, another order of the dimensions is worth the work.
LEAST_TO_MOVE = 2
# Where more than half of the padding is in residuals, jax.checkpoint frees it with the residuals.
SHARE_IN_RESIDUALS = 0.5


def _weigh(facts: ProgramFacts, finding: Finding) -> float:
    """The weight: less where the padding is in residuals, or where no buffer is mostly padding."""
    in_residuals = sum(live.op.padding_bytes for live in facts.buffers.saved)
    if in_residuals > SHARE_IN_RESIDUALS * (finding.saves_bytes or 0):
        return residuals.ADVICE.prior_weight / 2
    worst = max((op.expansion for op in facts.summary.ops if op.instruction), default=1.0)
    return PRIOR_WEIGHT if worst >= MOSTLY_PADDING else PRIOR_WEIGHT / 2


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
    copied = _layout_copies(facts)
    ops = [op for op in facts.summary.ops if op.instruction and op.instruction not in copied]
    total = sum(op.padding_bytes for op in ops)
    worst = max(ops, key=lambda op: op.padding_bytes, default=None)
    if worst is None or total < facts.minimum_saving_bytes:
        return None
    padded = tiled(worst.shape)
    shape = worst.shape.partition("{")[0]
    return ADVICE.finding(
        title=f"Padding: tiled layouts add {format_size(total)} ({worst.expansion:.1f}x for {shape}"
        f"{' at ' + worst.source if worst.source else ''})",
        evidence=f"{format_size(total)} of the peak is padding. {worst.shape} takes "
        f"{format_size(worst.size_bytes)} for {format_size(worst.unpadded_bytes)} of "
        f"elements{describe(padded)}.",
        remedy=remedy(worst, padded),
        saves_bytes=total,
        buffers=[op.instruction for op in ops if op.padding_bytes],
    )


def _layout_copies(facts: ProgramFacts) -> frozenset[str]:
    """The instructions of arguments in another layout, which have a finding of their own."""
    families = {live.family: live for live in facts.live if live.op.padding_bytes}
    least = facts.least_part_bytes
    large = (live for live in families.values() if live.size_bytes >= least)
    moved = {
        live.family for live in large if layout_copy.is_moved_argument(Candidate(facts, [live]))
    }
    return frozenset(live.op.instruction for live in facts.live if live.family in moved)


class Padded(NamedTuple):
    """The dimension of a shape that its tiles pad most.

    Attributes:
        dims: The dimensions of the shape.
        dimension: The index of the dimension.
        size: Its size.
        multiple: The size is padded to a multiple of it.
        position: 0 for the dimension that is minor in the layout, 1 for the next one.
        is_row_major: Whether the layout is the order of the dimensions; else the compiler chose it.
    """

    dims: Sequence[int]
    dimension: int
    size: int
    multiple: int
    position: int
    is_row_major: bool

    @property
    def padded_size(self) -> int:
        """The size with padding."""
        return _padded(self.size, self.multiple)


def _padded(size: int, multiple: int) -> int:
    """The next multiple of a size."""
    return -(-size // multiple) * multiple


def tiled(shape: str) -> Padded | None:
    """The dimension of a shape that is padded most; None where the text has no tiles.

    Args:
        shape: The shape as XLA prints it ("f32[8,3]{1,0:T(8,128)}").
    """
    dims = [int(size) for size in re.findall(r"\d+", shape.partition("[")[2].partition("]")[0])]
    layout, tiles = re.search(r"\{([\d,]+)", shape), _TILE.search(shape)
    order = [int(i) for i in layout[1].split(",")] if layout else []
    if not order or tiles is None or max(order) >= len(dims):
        return None
    tile = [int(size) for size in (tiles[2], tiles[1]) if size]
    growth = [_padded(dims[i], m) / max(dims[i], 1) for i, m in zip(order, tile)]
    position = max(range(len(growth)), key=growth.__getitem__)
    index = order[position]
    row_major = order == sorted(order, reverse=True)
    return Padded(dims, index, dims[index], tile[position], position, row_major)


def describe(padded: Padded | None) -> str:
    """Which dimension is padded, as words."""
    if padded is None:
        return ""
    return (
        f": dimension {padded.dimension} ({padded.size}) is padded to a multiple of "
        f"{padded.multiple} ({padded.padded_size})"
    )


def remedy(op: PeakOp, padded: Padded | None) -> str:
    """What would change the padding of a buffer."""
    if padded is None:
        return _GENERAL_REMEDY
    largest = max(range(len(padded.dims)), key=padded.dims.__getitem__)
    index, size = padded.dimension, padded.size
    moves = padded.is_row_major and padded.position == 0
    if not moves or largest == index or padded.padded_size < LEAST_TO_MOVE * size:
        return _without_moving(padded)
    made = (
        "Pass the array with"
        if op.kind == "parameter"
        else f"The program makes this buffer{' at ' + op.source if op.source else ''}: compute it "
        "with"
    )
    return (
        f"{made} the large dimension last ([{size}, {padded.dims[largest]}] instead of "
        f"[{padded.dims[largest]}, {size}]), as separate arrays without dimension {index}, or with "
        "that dimension merged into another one."
    )


def _without_moving(padded: Padded) -> str:
    """What would change the padding where the order of the dimensions stays.

    A larger size is no remedy: the elements then take what the padding takes now.
    """
    index, size, multiple = padded.dimension, padded.size, padded.multiple
    merge = f"Merge dimension {index} ({size}) with another dimension (reshape)"
    if smaller := size - size % multiple:
        merge += f", or make it at most {smaller} where the program allows that"
    return f"{merge}. A size of {padded.padded_size} takes the same memory as {size}."
