"""The findings of two reports: which are new or gone, and which cannot be compared."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hbmwatch import Finding, OomMessage, OomReport, PeakOp, PeakSummary
from hbmwatch._report.comparison import Comparison
from hbmwatch._report.diff_text import diff_text

GIB = 2**30


def _summary() -> PeakSummary:
    heap = np.array([GIB], dtype=np.int64)
    ops = (PeakOp("fusion.0", "fusion", "dot", "f32[8]{0}", GIB, GIB, "temporary"),)
    return PeakSummary("jit_step", 1, "hbm", GIB, GIB, 0, heap, 0, 0, 0, GIB, GIB, 0, ops)


def _finding(slug: str, title: str) -> Finding:
    return Finding(slug, title, "", "Do so.", GIB, "derived", "")


def test_findings_that_only_one_program_has_are_named() -> None:
    """Sizes and numbers in a title do not count; the only ones of a kind that are left are one."""
    reports = [
        OomReport(OomMessage(""), _summary(), findings=findings)
        for findings in (
            (
                _finding("residuals", "Rematerialize 2.00 GiB at a.py:14"),
                _finding("donation", "Donate argument 0"),
                _finding("logits", "Logits of 8.00 GiB"),
            ),
            (
                _finding("donation", "Donate params"),
                _finding("residuals", "Rematerialize 3.00 GiB at a.py:15"),
                _finding("padding", "Padding takes 4.00 GiB"),
            ),
        )
    ]
    comparison = Comparison(reports[0], reports[1])
    unknown = dataclasses.replace(reports[1], missing=("findings: the program is not there",))

    assert diff_text(comparison).splitlines() == [
        "Memory of jit_step: 1.00 GiB -> 1.00 GiB (+0 B)",
        "  Findings that are gone",
        "    Logits of 8.00 GiB (frees up to 1.00 GiB)",
        "  Findings that are new",
        "    Padding takes 4.00 GiB (frees up to 1.00 GiB)",
    ]
    assert Comparison(reports[0], unknown).findings() is None
    assert "Findings" not in diff_text(Comparison(reports[0], unknown))


FAILED, LIMITED, PLAIN = OomMessage("OOM"), OomMessage("", limit_bytes=GIB), OomMessage("")
CANNOT = "  The findings cannot be compared: "
NOT_FAILED = "is not of a failure, for which more are looked for."
NO_LIMIT = "were looked for without a limit."


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (FAILED, FAILED, ""),
        (LIMITED, LIMITED, ""),
        (PLAIN, FAILED, f"{CANNOT}the first {NOT_FAILED}"),
        (FAILED, LIMITED, f"{CANNOT}the second {NOT_FAILED}"),
        (PLAIN, LIMITED, f"{CANNOT}those of the first {NO_LIMIT}"),
        (LIMITED, PLAIN, f"{CANNOT}those of the second {NO_LIMIT}"),
    ],
)
def test_findings_of_a_failure_are_not_compared_with_those_of_a_profile(
    before: OomMessage, after: OomMessage, says: str
) -> None:
    """A profile alone has fewer: the others would be named as new or gone."""
    summary, finding = _summary(), _finding("donation", "Donate params")
    comparison = Comparison(
        OomReport(before, summary), OomReport(after, summary, findings=(finding,))
    )

    told = [line for line in diff_text(comparison).splitlines()[1:] if "limit of" not in line]
    if says:
        assert (told, comparison.findings()) == (["  no changes", says], None)
    else:
        assert told == ["  Findings that are new", "    Donate params (frees up to 1.00 GiB)"]
    alone = Comparison(OomReport(before, summary), OomReport(after, summary))
    assert alone.findings() == ((), ())


@pytest.mark.parametrize("place", [0, 1])
def test_findings_that_are_unavailable_have_a_reason(place: int) -> None:
    """In the values, and in the text."""
    reports = [OomReport(OomMessage(""), _summary()) for _ in range(2)]
    reports[place] = dataclasses.replace(reports[place], missing=("findings: MemoryError: ",))
    comparison = Comparison(reports[0], reports[1])

    reason = f"The findings cannot be compared: the {('first', 'second')[place]} has none "
    reason += "(findings: MemoryError)."
    values = comparison.to_dict()
    assert (values["findings"], values["why_no_findings"]) == (None, reason)
    assert reason in " ".join(diff_text(comparison).split())
