"""What a program's figures say to change first: every finding, ranked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.origin import FLOAT_BITS
from hbmwatch._findings.backward import checkpoint, residuals
from hbmwatch._findings.buffers import large_buffers
from hbmwatch._findings.leaves import (
    arguments_alone,
    donation,
    donation_unusable,
    gather,
    replication,
)
from hbmwatch._findings.phrases import ERROR_1000, counted, lines, some
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

# The order of suspicion: how often a thing of this kind was the matter where its bytes were there.
# A finding's weight times the share of what is missing that it frees gives its rank.
SUSPICION = {
    "donation": 3.0,
    "donation-unusable": 3.0,
    "replication": 3.0,
    "gather": 3.0,
    "callback": 3.0,
    "constant": 2.5,
    "padding": 2.0,
    "arguments": 2.0,
    "jacobian": 2.0,
    "one-hot": 2.0,
    "logits": 1.8,
    "attention-scores": 1.8,
    "stacked-outputs": 1.8,
    "pairwise": 1.7,
    "samples": 1.6,
    "random-bits": 1.6,
    "checkpoint": 1.5,
    "unrolled-loop": 1.4,
    "layout-copy": 1.4,
    "residuals": 1.0,
    "dtype": 0.9,
    "long-lived": 0.8,
    "aggregate": 0.1,
}
T = TypeVar("T")
# What is missing counts as this share of the peak at least.
_LEAST_MISSING = {"padding": 0.5}
_LEAST_OF_OTHERS = 0.4
_TILES = re.compile(r"T\((?:(\d+),)?(\d+)\)")
_ENDS = 0.6
# What scales below this share of what is missing is not the matter; so much of a device programs
# fill, as layouts and fragmentation do not scale.
_SHARE_WORTH, _ROOM = 0.1, 0.98


def find(evidence: ProgramFacts, failed: list[Exception] | None = None) -> tuple[Finding, ...]:
    """What to change, what is worth most first; the aggregate alone where every buffer is ordinary.

    Args:
        evidence: The failing program, and what is known of the failure.
        failed: Takes what a kind of finding raises, so that the others are found all the same;
            None lets it out.
    """

    def attempt(make: Callable[[ProgramFacts], T], otherwise: T) -> T:
        try:
            return make(evidence)
        except Exception as error:
            if failed is None:
                raise
            failed.append(error)
            return otherwise

    found = [finding for make in MAKERS if (finding := attempt(make, None)) is not None]
    large = attempt(large_buffers, list[Finding]())
    known = {finding.slug: finding.saves_bytes or 0 for finding in large}
    found = [f for f in found if (f.saves_bytes or 0) > known.get(f.slug, -1)]
    held = {finding.slug for finding in found}
    found += [finding for finding in large if finding.slug not in held]
    # What lives long mostly has a better reason that is named above; and all in all comes last.
    for otherwise in (long_lived, aggregate):
        worth = [f for f in found if (f.saves_bytes or 0) >= evidence.worth_bytes]
        if not worth and (last := attempt(otherwise, None)) is not None:
            found = [last]
    worth = [f for f in found if (f.saves_bytes or 0) >= evidence.worth_bytes] or found
    return tuple(sorted(worth, key=lambda finding: -_rank(evidence, finding)))


def of_message(message: OomMessage) -> tuple[Finding, ...]:
    """What the text alone says to change: where the memory on the chip ran out, and not HBM.

    Args:
        message: What the error's text says.
    """
    if message.memory_space not in ("vmem", "smem"):
        return ()
    name = message.memory_space.upper()
    figures = [
        (message.used_bytes, "are used"),
        (message.requested_bytes, "are asked for at once"),
        (message.limit_bytes, "are there"),
        (message.exceeded_by_bytes, "are missing"),
    ]
    said = [f"{format_size(size)} {what}" for size, what in figures if size is not None]
    if not said:
        return ()
    largest = max(message.ops, key=lambda op: op.size_bytes, default=None)
    where = f"; the largest is {largest.op_name}" if largest is not None and largest.op_name else ""
    return (
        Finding(
            slug="vmem",
            title=f"{name}: a kernel's blocks are too large for the memory on the chip",
            evidence=f"in {name} {', '.join(said)}{where}",
            remedy="Use smaller blocks (block_shape, scratch shapes) in the Pallas kernel, or raise "
            "vmem_limit_bytes in pltpu.CompilerParams.",
            saves_bytes=message.exceeded_by_bytes,
            certainty="hint",
            link="https://openxla.org/xla/errors/error_1001",
            will_not_help="a smaller batch, donation or jax.checkpoint: none of them makes a block "
            "smaller",
        ),
    )


def _rank(evidence: ProgramFacts, finding: Finding) -> float:
    """Suspicion times the share of what is missing, or of two fifths of the peak, that it frees."""
    least = _LEAST_MISSING.get(finding.slug, _LEAST_OF_OTHERS)
    needed = max(evidence.missing_bytes or 0, least * evidence.peak_bytes, 1.0)
    saves = finding.saves_bytes or 0
    weight = SUSPICION[finding.slug]
    if finding.slug == "padding":  # of what need not be kept, the padding need not be either
        kept = sum(live.op.padding_bytes for live in evidence.flow.saved)
        weight = SUSPICION["residuals"] / 2 if 2 * kept > saves else weight
    return weight * min(1.0, saves / needed)


def padding(evidence: ProgramFacts) -> Finding | None:
    """Bytes that layouts add to the elements."""
    # The row of small buffers has no shape, and XProf counts it as all padding.
    ops = [op for op in evidence.summary.ops if op.instruction]
    total = sum(op.padding_bytes for op in ops)
    worst = max(ops, key=lambda op: op.padding_bytes, default=None)
    if worst is None or total < evidence.worth_bytes:
        return None
    where, better = _padded(worst)
    return Finding(
        slug="padding",
        title=f"padding: layouts add {format_size(total)}, {worst.expansion:.1f}x for "
        f"{worst.shape.partition('{')[0]}{' at ' + worst.source if worst.source else ''}",
        evidence=f"{format_size(total)} of the peak are padding; {worst.shape} takes "
        f"{format_size(worst.size_bytes)} for {format_size(worst.unpadded_bytes)} of "
        f"elements{where}",
        remedy=better,
        saves_bytes=total,
        certainty="derived",
        link=ERROR_1000,
        will_not_help="a smaller batch keeps the same expansion",
    )


def _padded(op: PeakOp) -> tuple[str, str]:
    """Which dimension of a buffer pads, and the order of dimensions that would not."""
    dims = [int(size) for size in re.findall(r"\d+", op.shape.partition("[")[2].partition("]")[0])]
    layout = re.search(r"\{([\d,]+)", op.shape)
    order = [int(i) for i in layout[1].split(",")] if layout else []
    tiled = _TILES.search(op.shape)
    general = "Make the two minor dimensions multiples of 8 and 128 (pad or merge small ones)."
    if not order or tiled is None or max(order) >= len(dims):
        return "", general
    tile = [int(size) for size in (tiled[2], tiled[1]) if size]
    worst = max(
        zip(order, tile),
        key=lambda pair: -(-dims[pair[0]] // pair[1]) * pair[1] / max(dims[pair[0]], 1),
        default=(0, 1),
    )
    index, to = worst
    why = f": dimension {index} ({dims[index]}) is padded to a multiple of {to}"
    largest = max(range(len(dims)), key=lambda i: dims[i])
    if largest == index:
        return why, general
    return why, (
        f"Put the large dimension last: [{dims[index]}, {dims[largest]}] instead of "
        f"[{dims[largest]}, {dims[index]}] (transpose or reshape early), or merge the small "
        "dimension with another, so that the layout does not pad."
    )


def narrower(evidence: ProgramFacts) -> Finding | None:
    """float32 (or wider) temporaries where the arguments are narrower."""
    floats = [a for a in evidence.arguments if a.element_type in FLOAT_BITS]
    if not floats:
        return None
    given = sum(argument.size_bytes for argument in floats)
    narrow = [a for a in floats if FLOAT_BITS[a.element_type] <= 16]
    common = 16 if sum(a.size_bytes for a in narrow) * 2 > given else 32
    wide = [
        live
        for live in evidence.live
        if live.op.kind in ("temporary", "output") and FLOAT_BITS.get(live.element_type, 0) > common
    ]
    if not wide:
        return None
    saves = sum(
        live.size_bytes - live.size_bytes * common // FLOAT_BITS[live.element_type] for live in wide
    )
    total = sum(live.size_bytes for live in wide)
    where = lines(wide, 2)
    name = "bfloat16" if common == 16 else "float32"
    widest = "float64" if common == 32 else "float32"
    return Finding(
        slug="dtype",
        title=f"dtype: {widest} buffers although the arguments are {name}",
        evidence=f"{counted(len(wide), 'buffer')} of {widest}, {format_size(total)} at the peak, "
        f"while most argument bytes are {name}{', made at ' + where if where else ''}",
        remedy=f"Compute in {name}: look for a float32 constant, a dtype argument or an astype "
        "that promotes, and cast back right after the operations that need the precision.",
        saves_bytes=saves,
        certainty="derived",
        link=ERROR_1000,
        will_not_help="narrower arguments: it is the intermediates that are wide",
    )


def long_lived(evidence: ProgramFacts) -> Finding | None:
    """Temporaries that wait through most of the program between their first and last use."""
    points = len(evidence.summary.heap_bytes)
    waiting = {id(live) for live in evidence.flow.saved}
    idle = [
        live
        for live in evidence.live
        if id(live) not in waiting and _is_idle(evidence, live, points)
    ]
    if not idle:
        return None
    total = sum(live.size_bytes for live in idle)
    first = max(idle, key=lambda live: live.size_bytes)
    where = lines(idle, 2)
    return Finding(
        slug="long-lived",
        title=f"a long-lived temporary: made early, used late{' at ' + where if where else ''}",
        evidence=f"{counted(len(idle), 'buffer')}, {format_size(total)}: alive through most of the "
        f"program (points {first.op.start} to {first.op.end} of {points}), read only near the ends",
        remedy="Compute it again where it is used late (or jax.checkpoint the part that makes it), "
        "or move the two uses together, so that it is not kept in between.",
        saves_bytes=total,
        certainty="derived",
        link=ERROR_1000,
    )


def _is_idle(evidence: ProgramFacts, live: LiveBuffer, points: int) -> bool:
    """Whether a temporary lives long and is read only in the first and last part of its life."""
    start, end = live.op.start or 0, live.op.end if live.op.end is not None else points
    if live.op.kind != "temporary" or live.stack is not None or points < 10:
        return False
    if end - start < _ENDS * points or live.size_bytes < evidence.worth_bytes // 4:
        return False
    order = evidence.flow.order
    mine = order.get(live.instruction.id)
    readers = evidence.flow.readers(live)
    if any(reader.opcode == "while" for reader in readers):
        return False
    read = sorted(order[reader.id] for reader in readers if reader.id in order)
    if mine is None or not read:
        return False
    gaps = [b - a for a, b in zip([mine, *read], read)]
    return max(gaps) >= _ENDS * (read[-1] - mine)


def aggregate(evidence: ProgramFacts) -> Finding | None:
    """No cause of a known kind: what is largest, and how the bytes scale with the batch."""
    if not evidence.message.text and evidence.limit_bytes is None:
        return None  # nothing failed
    missing = evidence.missing_bytes
    arguments, length, scaling = evidence.batch
    if scaling < _SHARE_WORTH * (missing or 0):
        arguments = ()
    over = f": over by {format_size(missing)} in all" if missing else ""
    largest = max(evidence.live, key=lambda live: live.size_bytes, default=None)
    title = f"no single buffer is to blame{over}, so a smaller batch or more devices"
    peak = format_size(evidence.peak_bytes)
    said = f"the peak is {peak}, in buffers of ordinary kinds"
    if largest is not None and 2 * largest.size_bytes > evidence.peak_bytes:
        share = round(100 * largest.size_bytes / evidence.peak_bytes)
        where = f" at {largest.source}" if largest.source else ""
        title = (
            f"one {largest.op.kind} is {share} % of the peak: "
            f"{largest.op.shape.partition('{')[0]}{where}"
        )
        said = f"{format_size(largest.size_bytes)} of {peak}, of no kind that is known here"
        said += f", made by {largest.name}" if largest.name else ""
    if arguments:
        names = some(a.path for a in arguments)
        said = (
            f"{format_size(scaling)} of {peak} at the peak scale with the batch ({names}, "
            f"{length} a device){_fitting_batch(evidence, length)}"
        )
    return Finding(
        slug="aggregate",
        title=title,
        evidence=said,
        remedy="Use a smaller batch (accumulate gradients over micro-batches), shard over more "
        "devices, or a narrower dtype.",
        saves_bytes=scaling - int(evidence.scaled(length, 0.5)) if arguments else None,
        certainty="derived" if arguments else "hint",
        link=ERROR_1000,
        will_not_help="",
    )


def _fitting_batch(evidence: ProgramFacts, length: int) -> str:
    """The batch of which the peak would fit, with some room, if there is one."""
    limit, missing = evidence.limit_bytes, evidence.missing_bytes
    if limit is None or not missing:
        return ""
    room = _ROOM * limit - (limit + missing - evidence.scaled(length, 1.0))
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if evidence.scaled(length, middle / length) <= room else (low, middle)
        )
    return f"; a batch of {low} (instead of {length}) would fit" if low else ""


MAKERS: tuple[Callable[[ProgramFacts], Finding | None], ...] = (
    donation,
    donation_unusable,
    replication,
    gather,
    arguments_alone,
    padding,
    checkpoint,
    residuals,
    narrower,
)
