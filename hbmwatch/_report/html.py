"""The report as a page: one file that loads nothing, for a browser and for a notebook.

The page holds the report as `to_dict()` gives it, with the buffers in columns. Its script makes
every section of that; without a script the page shows the report as text.
"""

from __future__ import annotations

import base64
import string
import zlib
from html import escape
from typing import TYPE_CHECKING

from hbmwatch._report.assets import asset, data_json, policy, script_of
from hbmwatch._report.markup import markup
from hbmwatch._report.page_data import page_data, safe
from hbmwatch._report.text import headline, report_text

if TYPE_CHECKING:
    from hbmwatch._records.report import ReportData

_PLAIN_DATA = 2**20  # what is longer is deflated, to a third or less
# Each module imports only earlier ones, so that they can stand in one script in this order.
SCRIPTS = (
    "format names dom fallback choice roles report buffers groups view inspector curve chart "
    "moment treemap flame map table columns copy tools address print marks explorer budget "
    "sections main frame"
).split()


def page(report: ReportData, most: int | None = None) -> str:
    """The report as a whole HTML document, which loads nothing.

    Args:
        report: The report.
        most: The number of buffers that it holds at most, the largest ones; None for all.
    """
    style, script = asset("page.css"), script_of(*SCRIPTS)
    return string.Template(asset("page.html")).substitute(
        title=escape(safe(headline(report))),
        policy=policy(style=style, script=script),
        style=style,
        script=script,
        text=markup(report_text(report)),
        data=_data_element(data_json(page_data(report, most))),
    )


def _data_element(text: str) -> str:
    """The element with the page's data, deflated if it is large."""
    if len(text) <= _PLAIN_DATA:
        return f'<script type="application/json" id="data">{text}</script>'
    packed = base64.b64encode(zlib.compress(text.encode("ascii"), 1)).decode("ascii")
    return f'<script type="text/plain" id="data">{packed}</script>'
