"""What all findings free together, and whether that is enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.fitting_batch import fitting
from hbmwatch._findings.phrases import either, mesh_exists
from hbmwatch._findings.random_bits import is_drawn
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import unnumbered
from hbmwatch._report.text import NARROWER, TO_FIT
from hbmwatch._xla.types import float_bits

# It halves the batch, which halves what other findings free: it is an alternative to them.
_ALTERNATIVE = "aggregate"
# It frees memory that is not a part of the program's peak.
_BESIDE = "live-arrays"
# It needs more devices, or another dtype.
_MORE_DEVICES = "arguments"
# It frees of each buffer what its layout adds.
_PADDING = "padding"
_KEPT = ("parameter", "output")


def verdict(facts: ProgramFacts, findings: Sequence[Finding]) -> str:
    """A sentence on what the findings free together; "" if nothing is missing, or no limit known.

    Args:
        facts: The failing program.
        findings: Its findings.
    """
    needed = facts.over_limit_bytes
    if not needed:
        return ""
    on_these = [finding for finding in findings if finding.slug != _MORE_DEVICES]
    fixed = {kind: left_bytes(facts, on_these, kind, fixed=True) for kind in _KEPT}
    if facts.limit_bytes and sum(fixed.values()) > facts.limit_bytes:
        return _hopeless(facts, fixed, on_these)
    freed = freed_together(facts, findings)
    if not freed:
        needs = f"{format_size(needed)} must be freed"
        return _batch(facts) or (f"{needs}." if findings else f"{needs}, and no finding says how.")
    count = sum(1 for f in findings if f.slug != _ALTERNATIVE and f.saves_bytes)
    if freed >= needed:
        these = "This frees" if count == 1 else "These free"
        together = "" if count == 1 else " together"
        return (
            f"{these} up to {format_size(freed)}{together}; {format_size(needed)} must be freed, "
            "so this is probably enough."
        )
    # A change may free more than the buffers of its finding.
    rest = _batch(facts) or _remaining(facts, findings)
    these = "This finding frees" if count == 1 else "These findings free"
    return (
        f"{these} up to {format_size(freed)} of the {format_size(needed)} that must be freed. "
        f"Another {format_size(needed - freed)} must come from other buffers. {rest}"
    ).strip()


def freed_together(facts: ProgramFacts, findings: Sequence[Finding]) -> int:
    """The bytes that the findings free together at most; what several free is counted once."""
    beside = sum(f.saves_bytes or 0 for f in findings if f.slug == _BESIDE)
    return sum(facts.once(_all_bytes).values()) - left_bytes(facts, findings) + beside


def left_bytes(
    facts: ProgramFacts, findings: Sequence[Finding], kind: str = "", fixed: bool = False
) -> int:
    """The bytes at the peak that the findings leave at least.

    A finding frees the same share of each of its buffers, or of each its padding. Two findings on
    one buffer free what the second frees of what the first leaves.

    Args:
        facts: The failing program.
        findings: Its findings.
        kind: The kind of buffers that count; "" for all buffers.
        fixed: Whether what scales with the batch does not count.
    """
    buffers = facts.once(_buffers)
    freed = sum(
        buffers[name].size_bytes * (1 - left)
        for name, left in _left_shares(facts, findings).items()
        if kind in ("", buffers[name].kind) and not (fixed and name in facts.once(_scaling))
    )
    totals = facts.once(_fixed_bytes if fixed else _all_bytes)
    total = totals.get(kind, 0) if kind else sum(totals.values())
    return round(total - freed)


def _left_shares(facts: ProgramFacts, findings: Sequence[Finding]) -> dict[str, float]:
    """The share that the findings leave of each buffer that they free, by its instruction."""
    freeing = tuple(f for f in findings if f.slug != _ALTERNATIVE and f.buffers)
    known, key = facts.once(_known_shares), tuple(map(id, freeing))
    if key not in known:
        known[key] = freeing, _shares(facts, freeing)
    return known[key][1]


_Known = dict[tuple[int, ...], tuple[tuple[Finding, ...], dict[str, float]]]


def _known_shares(facts: ProgramFacts) -> _Known:
    """What `_left_shares` has found, by the ids of the findings, which it keeps alive."""
    return {}


def _shares(facts: ProgramFacts, findings: Sequence[Finding]) -> dict[str, float]:
    """The share that the findings leave of each buffer."""
    buffers = facts.once(_buffers)
    left: dict[str, float] = {}
    for finding in findings:
        names = [name for name in finding.buffers if name in buffers]
        total = sum(buffers[name].size_bytes for name in names)
        even = min(1.0, (finding.saves_bytes or 0) / total) if total else 0.0
        for name in names:
            op = buffers[name]
            padded = op.padding_bytes / max(op.size_bytes, 1)
            share = padded if finding.slug == _PADDING else even
            left[name] = left.get(name, 1.0) * (1 - share)
    return left


def _buffers(facts: ProgramFacts) -> dict[str, PeakOp]:
    """The buffers at the peak, by instruction."""
    return {op.instruction: op for op in facts.summary.ops}


def _scaling(facts: ProgramFacts) -> frozenset[str]:
    """The instructions of the buffers that scale with the batch."""
    return frozenset(live.op.instruction for live in facts.scaling)


def _all_bytes(facts: ProgramFacts) -> dict[str, int]:
    """Bytes at the peak, by kind."""
    totals: dict[str, int] = {}
    for op in facts.summary.ops:
        totals[op.kind] = totals.get(op.kind, 0) + op.size_bytes
    return totals


def _fixed_bytes(facts: ProgramFacts) -> dict[str, int]:
    """Bytes at the peak that do not scale with the batch, by kind."""
    totals = dict(facts.once(_all_bytes))
    for live in facts.scaling:
        totals[live.op.kind] -= live.size_bytes
    return totals


def unnamed(facts: ProgramFacts, findings: Sequence[Finding]) -> set[str]:
    """The instructions of the buffers that the findings leave, half of each or more."""
    left = _left_shares(facts, findings)
    return {name for name in facts.once(_buffers) if name and left.get(name, 1.0) > 1 / 2}


def _hopeless(facts: ProgramFacts, fixed: Mapping[str, int], findings: Sequence[Finding]) -> str:
    """When the arguments and outputs that the findings leave do not fit, whatever the batch.

    The figure is that of all of them, as in the finding on arguments.

    Args:
        facts: The failing program.
        fixed: The bytes that they leave and that do not scale with the batch, by kind.
        findings: The findings.
    """
    limit = facts.limit_bytes or 1
    alone = {kind: left for kind, left in fixed.items() if left > limit}
    kind = max(alone, key=alone.__getitem__, default="")
    what, verb, less = {
        "parameter": ("arguments", "take", "pass less"),
        "output": ("output", "takes", "return less"),
    }.get(kind, ("arguments and outputs", "take", "pass or return less"))
    kinds = [kind] if kind else list(_KEPT)
    size = sum(left_bytes(facts, findings, each) for each in kinds)
    whole = sum(facts.once(_all_bytes).get(each, 0) for each in kinds)
    subject = f"The {what} alone {verb} {format_size(size)}"
    if whole - size > facts.minimum_saving_bytes:
        subject = f"After these changes the {what} alone still {verb} {format_size(size)}"
    halved = _halved(facts, kinds, size)
    devices = -(-size * facts.device_count // limit)
    drawn = kind == "output" and _are_drawn(facts)
    changes = [*([] if drawn else [less]), *([NARROWER] if halved <= limit else [])]
    if mesh_exists(devices):
        changes.append(f"shard over {devices} or more such devices")
    return f"{subject}; the device has {format_size(limit)}. {TO_FIT}{either(changes)}."


def _are_drawn(facts: ProgramFacts) -> bool:
    """Whether all large outputs come from a random generator, as new weights do."""
    outputs = (live for live in facts.live if live.op.kind == "output")
    large = (live for live in outputs if live.size_bytes >= facts.least_part_bytes)
    return all(is_drawn(Candidate(facts, [live])) for live in large)


def _halved(facts: ProgramFacts, kinds: Collection[str], size: int) -> int:
    """What bytes of some kinds become where float32 is stored as bfloat16."""
    wide = (live for live in facts.live if live.op.kind in kinds)
    return size - sum(live.size_bytes for live in wide if float_bits(live.element_type) == 32) // 2


def _batch(facts: ProgramFacts) -> str:
    """Which batch should fit, as a sentence; "" where none does."""
    fits = fitting(facts)
    return f"{fits[0].upper()}{fits[1:]}." if fits else ""


def _remaining(facts: ProgramFacts, findings: Sequence[Finding]) -> str:
    """The largest buffer that no finding is about, as a sentence."""
    names = unnamed(facts, findings)
    rest = [(count, op) for count, op in facts.summary.grouped() if op.instruction in names]
    if not rest:
        return ""
    count, op = rest[0]
    if count * op.size_bytes < facts.minimum_saving_bytes:
        return ""
    size = format_size(count * op.size_bytes)
    several = f"{count} x " if count > 1 else ""
    path = unnumbered(op.path or "") if count > 1 else op.path
    where = f" at {op.source}" if op.source else f" ({path})" if path else ""
    return f"The largest of these: {several}{op.shape.partition('{')[0]}{where}, {size}."
