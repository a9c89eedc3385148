"""The report as flat name -> number, for metrics loggers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hbmwatch._records.report import ReportData

_SUBSCRIPT = re.compile(r"""\[['"]?([^\[\]'"]*)['"]?\]""")
# MLflow takes letters, digits and "_-./ :", 250 of them; TensorBoard not all of these.
_NOT_IN_METRICS = re.compile(r"[^A-Za-z0-9_./-]+")
_METRIC_LENGTH, _PATH_LENGTH = 240, 180


def report_scalars(report: ReportData) -> dict[str, int | float]:
    """The report as flat name -> number; what is not known is left out.

    Names are of letters, digits and "_-./", as every metrics logger takes them.
    """
    named: dict[str, int | float | None] = {}
    named |= _numbers("message", report.message)
    named |= _numbers("peak", report.summary)
    named |= _numbers("device", report.device)
    if report.process is not None:
        named |= {
            "process/index": report.process.index,
            "process/count": report.process.count,
            "process/slice": report.process.slice_index,
        }
    named |= {f"breakdown/{name}_bytes": size for name, size in report.breakdown.items()}
    for grouping, sizes in report.rollup.items():
        for name, size in sizes.items():
            metric = f"rollup/{grouping}/{_metric(name)}_bytes"
            named[metric] = size + (named.get(metric) or 0)
    for finding in report.findings:
        named.setdefault(f"finding/{finding.slug}/saves_bytes", finding.saves_bytes)
    known = ((name, number) for name, number in named.items() if number is not None)
    return {f"hbm/{_NOT_IN_METRICS.sub('_', name)[:_METRIC_LENGTH]}": n for name, n in known}


def _metric(name: str) -> str:
    """A role or a path as every metrics logger takes it: "params['w'][0]" is "params.w.0"."""
    plain_name = _NOT_IN_METRICS.sub("_", _SUBSCRIPT.sub(r".\1", name))
    return plain_name.strip("_")[:_PATH_LENGTH] or "other"


def _numbers(prefix: str, record: Any) -> dict[str, int | float | None]:
    """The sizes among a record's fields."""
    names: Iterable[str] = (f.name for f in dataclasses.fields(record)) if record else ()
    values = {name: getattr(record, name) for name in names if name.endswith("_bytes")}
    return {f"{prefix}/{n}": v for n, v in values.items() if isinstance(v, (int, float))}
