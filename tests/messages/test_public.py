"""Texts of public reports, with what each states, written before the parser had read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomMessage, parse_ooms
from hbmwatch._records.sizes import read_size

# The second file was collected by somebody who did not know the wordings.
REPORTS: list[dict[str, Any]] = [
    report
    for name in ("public.json", "blind.json")
    for report in json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
]


def agrees(message: OomMessage, name: str, stated: Any) -> bool:
    """Whether a field is what the text states, within the rounding of the text."""
    read = getattr(message, name)
    if name == "ops":
        return bool(len(read) == stated)
    size = read_size(stated) if isinstance(stated, str) and name.endswith("_bytes") else None
    if size is None:
        return bool(read == stated)
    return read is not None and bool(abs(read - size.size_bytes) <= size.resolution_bytes)


def case(report: dict[str, Any]) -> Any:
    """A report as a parameter; what is known to be read wrongly must fail."""
    gap = report.get("gap")
    marks = [pytest.mark.xfail(reason=gap, strict=True)] if gap else []
    return pytest.param(report, id=report["source"].replace("https://", ""), marks=marks)


@pytest.mark.parametrize("report", [case(report) for report in REPORTS])
def test_a_public_report_is_read_as_a_person_reads_it(report: dict[str, Any]) -> None:
    """Its class and its figures; mostly one failure, or none where memory is only mentioned."""
    messages = parse_ooms(report["text"])
    one_or_more = report["expected"] or []
    failures = one_or_more if isinstance(one_or_more, list) else [one_or_more]
    assert len(messages) == len(failures)
    for message, expected in zip(messages, failures, strict=True):
        wrong = {n: getattr(message, n) for n, v in expected.items() if not agrees(message, n, v)}
        figures = [n for n in OomMessage.__slots__ if n.endswith("_bytes") and n not in expected]
        more = {n: v for n in figures if (v := getattr(message, n)) not in (None, {})}
        more.pop("resolution_bytes", None)
        assert (wrong, more) == ({}, {})
