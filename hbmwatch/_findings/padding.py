"""Bytes that tiled layouts add to the elements of buffers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
# The compiler chooses the shapes and layouts of what is no argument: inside of an FFT, for example.
_IF_OWN = "If an array of the program has this shape"
_AGAIN = " Compile again: XLA may choose another layout."
PRIOR_WEIGHT = 2.0
# Every program has some padding; it is seldom the cause where no buffer is mostly padding.
MOSTLY_PADDING = 2.0
# Padding that is spread over more shapes than these has no remedy that one could follow.
MOST_SHAPES = 3
# A shape with less than a tenth of the largest padding would free little, so it is not named.
LEAST_SHARE_OF_LARGEST = 0.1
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
    without_batch="",
    # Some padding is in every program: it counts in full only where it is half of the peak.
    least_share_of_peak=0.5,
    weigh=_weigh,
)


def find(facts: ProgramFacts) -> Finding | None:
    """Padding that is worth avoiding."""
    # The row of small buffers has no instruction, and XProf counts it as all padding.
    copied = _layout_copies(facts)
    ops = [op for op in facts.summary.ops if op.instruction and op.instruction not in copied]
    shapes: dict[tuple[str, str], list[PeakOp]] = {}
    for op in sorted(ops, key=lambda op: -op.padding_bytes):
        if op.padding_bytes:
            shapes.setdefault((op.shape, op.source), []).append(op)
    named = sorted(shapes.values(), key=lambda same: -_padding(same))[:MOST_SHAPES]
    named = [s for s in named if _padding(s) >= LEAST_SHARE_OF_LARGEST * _padding(named[0])]
    padded_ops = [op for same in named for op in same]
    total = _padding(padded_ops)
    if not named or total < facts.minimum_saving_bytes:
        return None
    worst, others = named[0][0], [same[0] for same in named[1:]]
    padded = tiled(worst.shape)
    dims = dims_of(facts)
    evidence = " ".join(f"{_describe_padding(same, tiled(same[0].shape), dims)}." for same in named)
    return ADVICE.finding(
        title=f"Padding: tiled layouts add {format_size(total)} ({worst.expansion:.1f}x for "
        f"{_short(worst)}{', and in other buffers' if others else ''})",
        evidence=evidence,
        remedy=remedy(worst, padded)
        + (" The same applies to the other buffers, each at its line." if others else ""),
        saves_bytes=total,
        buffers=[op.instruction for op in padded_ops],
    )


def _padding(ops: Sequence[PeakOp]) -> int:
    """The bytes that layouts add to some buffers."""
    return sum(op.padding_bytes for op in ops)


def _short(op: PeakOp) -> str:
    """The shape without its layout, and the line: "f32[8,3] at train.py:7"."""
    return f"{op.shape.partition('{')[0]}{' at ' + op.source if op.source else ''}"


def _describe_padding(
    same: Sequence[PeakOp], padded: Padded | None, dims: Mapping[int, str]
) -> str:
    """What buffers of one shape take, and which of its dimensions is padded."""
    op, several = same[0], f"{len(same)} x " if len(same) > 1 else ""
    takes = "take" if several else "takes"
    text = f"{several}{op.shape}{' at ' + op.source if op.source else ''} {takes} "
    text += f"{format_size(sum(each.size_bytes for each in same))} for "
    text += f"{format_size(sum(each.unpadded_bytes for each in same))} of elements"
    text += describe(padded)
    known = dims.get(padded.size, "") if padded is not None else ""
    return f"{text}; {known}" if known else text


def dims_of(facts: ProgramFacts) -> dict[int, str]:
    """Which dimension of the arguments has a size, where one dimension alone has it.

    The compiler's arrays are not those of the user's source: a size that both have is a hint.
    """
    found: dict[int, list[str]] = {}
    for argument in facts.arguments:
        for index, size in enumerate(argument.dims):
            found.setdefault(size, []).append(f"{size} is dimension {index} of {argument.path}")
    return {size: texts[0] for size, texts in found.items() if len(texts) == 1 and size > 1}


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
        return _without_moving(op, padded)
    made = (
        "Pass the array with"
        if op.kind == "parameter"
        else f"{_IF_OWN}: compute it{' at ' + op.source if op.source else ''} with"
    )
    compiled = "" if op.kind == "parameter" else _AGAIN
    return (
        f"{made} dimension {largest} ({padded.dims[largest]}) last instead of dimension {index} "
        f"({size}), as separate arrays without dimension {index}, or with that dimension merged "
        f"into another one.{compiled}"
    )


def _without_moving(op: PeakOp, padded: Padded) -> str:
    """What would change the padding where the order of the dimensions stays.

    A larger size is no remedy: the elements then take what the padding takes now.
    """
    index, size, multiple = padded.dimension, padded.size, padded.multiple
    own = op.kind == "parameter"
    merge = f"{'Merge' if own else f'{_IF_OWN}: merge'} dimension {index} ({size}) with another "
    merge += "dimension (reshape)"
    if smaller := size - size % multiple:
        merge += f", or make it at most {smaller} where the program allows that"
    same = f" A size of {padded.padded_size} takes the same memory as {size}."
    return f"{merge}.{'' if own else _AGAIN}{same}"
