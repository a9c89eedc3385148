"""Two memory peaks side by side, as one page that loads nothing."""

from __future__ import annotations

import string
from html import escape
from typing import TYPE_CHECKING, Any

from hbmwatch._records.text import kind_name
from hbmwatch._report.assets import asset, data_json, policy, script_of
from hbmwatch._report.diff import GROUPINGS, Change
from hbmwatch._report.diff_text import diff_text, heading
from hbmwatch._report.json import plain
from hbmwatch._report.markup import markup
from hbmwatch._report.page_data import safe

if TYPE_CHECKING:
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._report.comparison import Comparison

_MOST_ROWS = 200  # of a table; what is left is one row
_MOST_POINTS = 4000  # of a curve; of more, the highest of each group is drawn
# Each module imports only earlier ones, so that they can stand in one script in this order.
SCRIPTS = ("format", "dom", "fallback", "choice", "cells", "address", "changes", "curve", "diff")


def diff_page(comparison: Comparison, before: str, after: str, grouping: str = "origin") -> str:
    """The comparison as a whole HTML document; without a script it shows the text.

    Args:
        comparison: The two reports.
        before: What the first one is called, such as its file.
        after: What the second one is called.
        grouping: What the changes are grouped by at first, a key of GROUPINGS.
    """
    style = asset("page.css") + asset("diff.css")
    script = script_of(*SCRIPTS)
    return string.Template(asset("diff.html")).substitute(
        title=escape(safe(heading(comparison))),
        policy=policy(style=style, script=script),
        style=style,
        script=script,
        text=markup(diff_text(comparison, grouping=grouping)),
        data=data_json(safe(_data(comparison, before, after, grouping))),
    )


def _data(comparison: Comparison, before: str, after: str, grouping: str) -> dict[str, Any]:
    """What the page's script shows."""
    found = comparison.findings()
    return {
        "title": heading(comparison).replace(" -> ", " \N{RIGHTWARDS ARROW} "),
        "verdict": comparison.verdict(),
        "limit": comparison.limit_bytes,
        "sides": [
            {
                "name": name,
                "module": summary.module,
                "peak": summary.peak_bytes,
                "total": total,
                **_curve(summary),
            }
            for name, summary, total in zip(
                (before, after), comparison.peaks, comparison.total_bytes, strict=True
            )
        ],
        "account": plain(comparison.account()),
        "by": grouping,
        "groupings": [
            {"name": name, "label": label, **_rows(comparison.changes(name), name)}
            for name, label in GROUPINGS.items()
        ],
        "findings": None if found is None else {"gone": plain(found[0]), "new": plain(found[1])},
        "why_no_findings": comparison.why_no_findings(),
    }


def _curve(summary: PeakSummary) -> dict[str, Any]:
    """The bytes over the program, and the number of its program points."""
    heap = [int(value) for value in summary.heap_bytes]
    group = -(-len(heap) // _MOST_POINTS) or 1
    drawn = [max(heap[start : start + group]) for start in range(0, len(heap), group)]
    return {"heap": drawn, "points": len(heap)}


def _rows(changes: tuple[Change, ...], grouping: str) -> dict[str, Any]:
    """The rows of a table of changes, and what is not in it; one operation has one shape."""
    has_shape = grouping == "origin"
    shown, rest = changes[:_MOST_ROWS], changes[_MOST_ROWS:]
    return {
        "rows": [
            {
                "name": change.name,
                "kind": kind_name(change.kind),
                "source": change.source,
                "before": [
                    change.before.count,
                    change.before.size_bytes,
                    change.before.shape * has_shape,
                ],
                "after": [
                    change.after.count,
                    change.after.size_bytes,
                    change.after.shape * has_shape,
                ],
            }
            for change in shown
        ],
        "more": len(rest),
        "more_bytes": sum(change.delta_bytes for change in rest),
    }
