"""The report in a notebook's cell: the page in a frame, and what is left where no script runs."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

from hbmwatch._records.report import limit_of
from hbmwatch._report.assets import asset
from hbmwatch._report.curves import curve_picture
from hbmwatch._report.html import page
from hbmwatch._report.markup import markup
from hbmwatch._report.text import report_text

if TYPE_CHECKING:
    from hbmwatch._records.report import ReportData

_MOST_BUFFERS = 2000
_HEIGHT = 760  # of the frame until it tells its own

_CELL = """\
<div>
<iframe class="hbmwatch" srcdoc="{page}" sandbox="allow-scripts" title="hbmwatch report" \
style="width:100%;height:{height}px;border:0"></iframe>
<div>{picture}<pre style="white-space:pre;overflow-x:auto">{text}</pre></div>
<script>{script}</script>
</div>
"""


def notebook(report: ReportData) -> str:
    """The page in a frame of its own, with the largest buffers only.

    Where a notebook runs no scripts, such as one that is not trusted or a preview on GitHub, it
    removes the frame or cannot fit it; a picture of the memory curve and the text stand below it.
    """
    return _CELL.format(
        page=escape(page(report, _MOST_BUFFERS), quote=True),
        height=_HEIGHT,
        picture=_picture(report),
        text=markup(report_text(report)),
        script=asset("notebook.js"),
    )


def _picture(report: ReportData) -> str:
    """The memory curve as an image; "" where it is unknown."""
    summary = report.summary
    if summary is None or not len(summary.heap_bytes):
        return ""
    svg, label = curve_picture(summary, limit_of(report))
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(label)}" src="data:image/svg+xml;base64,{data}">'
