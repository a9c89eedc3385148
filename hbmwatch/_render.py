"""How a report reads: as text, as JSON-able values, as scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hbmwatch._sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records import OomReport, PeakSummary


def summary_text(summary: PeakSummary) -> str:
    """The peak-op summary as a table."""
    return f"{summary.module} {format_size(summary.peak_bytes)}"


def report_text(report: OomReport) -> str:
    """The whole report, at most about 40 lines below 100 columns."""
    return str(report.summary)


def report_dict(report: OomReport) -> dict[str, Any]:
    """The report as JSON-able values."""
    return {}


def report_scalars(report: OomReport) -> dict[str, int | float]:
    """The report as flat name -> number."""
    return {}
