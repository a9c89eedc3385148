"""The report as people use it: the data, and every way to show or store it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hbmwatch._records.report import ReportData
from hbmwatch._report.json import fingerprint, rebuild_report, report_dict
from hbmwatch._report.metrics import report_scalars
from hbmwatch._report.text import one_line, report_text


@dataclass(frozen=True, slots=True, weakref_slot=True)
class OomReport(ReportData):
    """Why a program ran out of device memory: the message, the peak, the device, the findings.

    The fields are those of ReportData.
    """

    __module__ = "hbmwatch"

    def text(self, *, top: int = 10) -> str:
        """The report as text, below 100 columns.

        Args:
            top: How many rows of buffers it shows at most.
        """
        return report_text(self, top)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<OomReport: {one_line(self)}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How a terminal's IPython shows it."""
        printer.text(repr(self) if cycle else self.text())

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values, under a "schema" version."""
        return report_dict(self)

    def scalars(self) -> dict[str, int | float]:
        """The report as flat name -> number, for a metrics logger."""
        return report_scalars(self)

    def to_html(self) -> str:
        """The report as one HTML document that needs nothing else, with chart and table."""
        from hbmwatch._report import html  # a third of what reading one message would load

        return html.page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write to_html() into a file.

        Raises:
            OSError: It cannot be written.
        """
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from hbmwatch._report.notebook import notebook

        return notebook(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OomReport:
        """The report that to_dict() gave, also after a round trip through JSON.

        Raises:
            ValueError: Another schema version, or values that are not a report; it says where.
        """
        return rebuild_report(cls, values)

    def fingerprint(self) -> str:
        """16 hex digits that group reports of one failure, whatever the sizes (for Sentry)."""
        return fingerprint(self)
