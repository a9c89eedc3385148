"""Findings and plan agree: what was measured of a remedy is said, and decides the order."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Finding, Fit, PlanRow, plan
from hbmwatch._preflight.measured import measured
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport

GIB = 2**30


def finding(slug: str, saves_gib: int) -> Finding:
    """A finding with one buffer."""
    return Finding(
        slug, f"The {slug}", "Some bytes.", "Do it.", saves_gib * GIB, "derived", "", buffers=("f",)
    )


def verdict(fits: bool | None, peak_gib: float | None) -> Fit:
    """A verdict of a v5e."""
    peak = None if peak_gib is None else int(peak_gib * GIB)
    return Fit(fits, peak, peak, 15 * GIB, "v5e", "assigned", OomReport(message=OomMessage("")))


def row(changes: str, fits: bool | None, peak_gib: float | None) -> PlanRow:
    """A row of a plan."""
    names = tuple(changes.split())
    return PlanRow(names, "B", f"doing {changes}", "", (), "", verdict(fits, peak_gib))


def told(slug: str, saves_gib: int, text: str, **changes: Any) -> Finding:
    """A finding after it was measured."""
    return dataclasses.replace(
        finding(slug, saves_gib),
        certainty="measured",
        evidence=f"Some bytes. Measured ({text}.",
        **changes,
    )


def test_what_was_measured_is_said_and_decides_the_order() -> None:
    """A remedy that fits comes first; one that frees nothing comes last and frees 0 bytes.

    Another way to do what a finding advises may still help, so that pieces disprove nothing, and
    changes that were made together say nothing of one of them.
    """
    findings = [
        finding("donation", 9),
        finding("logits", 8),
        finding("pairwise", 7),
        finding("residuals", 6),
        finding("callback", 5),
        finding("padding", 4),
        finding("constant", 3),
    ]
    rows = [
        row("callbacks", True, 12),
        row("donation pieces", True, 10),
        row("checkpoint", False, 18),
        row("checkpoint", False, 17),
        row("pieces", False, 19.9),
        row("donation", False, 20),
        row("constants", None, None),
    ]

    assert measured(findings, verdict(False, 20), rows) == (
        told("callback", 8, "doing callbacks): fits, peak 12.00 GiB"),
        finding("logits", 8),
        finding("pairwise", 7),
        told("residuals", 3, "doing checkpoint): still does not fit, peak 17.00 GiB"),
        finding("padding", 4),
        finding("constant", 3),
        told(
            "donation",
            0,
            "doing donation): still does not fit, peak 20.00 GiB, unchanged",
            buffers=(),
        ),
    )


def test_without_a_peak_nothing_is_measured() -> None:
    """The findings stay as they are."""
    findings = (finding("donation", 9),)

    assert measured(findings, verdict(False, None), [row("donation", True, 5)]) == findings


@pytest.mark.slow
def test_the_report_of_a_plan_has_what_it_measured() -> None:
    """The finding of a real program, for a state that is returned and not donated."""
    state = jax.ShapeDtypeStruct((4, 1024, 1024), jnp.float32)
    found = plan(jax.jit(lambda state: state * 0.9), state, limit_bytes=20 * 2**20)
    first = found.before.report.findings[0]

    assert (first.slug, first.certainty, first.saves_bytes) == ("donation", "measured", 2**24)
    assert first.evidence.endswith("Measured (donating state): fits, peak 16 MiB.")
