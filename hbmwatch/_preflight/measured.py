"""The findings of a program, after a plan has tried what they advise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hbmwatch._preflight.plans import PlanRow
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._preflight.verify import Verification
from hbmwatch._records.report import Finding

# The changes that are just what a finding advises, by its slug: if they free nothing, it is wrong.
_SAME = {
    "callback": ("callbacks",),
    "constant": ("constants",),
    "donation": ("donation",),
    "host-fetch": ("in-loop",),
    "replication": ("sharding", "state-sharding", "output-sharding"),
}
# The changes that are one way to do what it advises: another way may still help.
_ONE_WAY = {
    "attention-scores": ("pieces",),
    "checkpoint": ("checkpoint",),
    "donation-unusable": ("kept-dtype", "output-sharding"),
    "dtype": ("in-loop",),
    "jacobian": ("pieces",),
    "logits": ("pieces",),
    "pairwise": ("pieces",),
    "random-bits": ("pieces",),
    "residuals": ("checkpoint",),
    "samples": ("pieces",),
}
# A change that lowers the peak by less frees nothing worth a try.
_LEAST_GAIN = 0.03


def measured(
    findings: Iterable[Finding], before: Fit, rows: Sequence[PlanRow]
) -> tuple[Finding, ...]:
    """The findings, with what a plan measured of their remedies.

    Those whose remedy makes the step fit come first, and those whose remedy frees nothing last.

    Args:
        findings: The findings of the program as it is.
        before: The verdict on it.
        rows: What the plan tried.
    """
    judged = [_judged(finding, before, rows) for finding in findings]
    return tuple(finding for _, finding in sorted(judged, key=lambda one: one[0]))


def _judged(finding: Finding, before: Fit, rows: Sequence[PlanRow]) -> tuple[int, Finding]:
    """The finding, and whether it comes first, in the middle or last."""
    same, one_way = _SAME.get(finding.slug, ()), _ONE_WAY.get(finding.slug, ())
    alone = [row for row in rows if len(row.changes) == 1 and row.changes[0] in (*same, *one_way)]
    known = [row for row in alone if row.peak_bytes is not None]
    best = min(known, key=lambda row: (not row.fits, row.peak_bytes or 0), default=None)
    if best is None or before.peak_bytes is None:
        return 1, finding
    result = _verification(best, before).measured(finding)
    if best.fits:
        return 0, result
    if (best.peak_bytes or 0) <= (1 - _LEAST_GAIN) * before.peak_bytes:
        return 1, result
    if not same:
        return 1, finding
    return 2, dataclasses.replace(result, saves_bytes=0, buffers=())


def _verification(row: PlanRow, before: Fit) -> Verification:
    return Verification(
        change=row.what,
        fits=row.fits,
        peak_bytes_before=before.peak_bytes,
        peak_bytes=row.peak_bytes,
    )
