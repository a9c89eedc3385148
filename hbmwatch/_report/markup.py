"""Foreign text as HTML."""

from __future__ import annotations

import re
from html import escape

from hbmwatch._report.page_data import safe

# A word with a letter of Hebrew, Arabic or another script that is read from right to left.
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_WORD = re.compile(r"(\s+)")


def markup(text: str) -> str:
    """A text as HTML, without control characters.

    A word that is read from right to left is an element of its own: else it would take along the
    figures that follow it.
    """
    shown = safe(text)
    if not _RIGHT_TO_LEFT.search(shown):
        return escape(shown)
    return "".join(
        f'<bdi dir="ltr">{escape(part)}</bdi>' if _RIGHT_TO_LEFT.search(part) else escape(part)
        for part in _WORD.split(shown)
    )
