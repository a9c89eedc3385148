"""How a text is laid out: how wide it is, and what a terminal shows in color."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRONG, _LIMIT, _OVER = "1", "33", "1;31"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FIGURE = r"-?[\d.]+ (?:[KMGTPE]i)?B"
# What a reader looks for first: what is too much, and the limit.
_MARKED = re.compile(
    rf"(?P<over>{_FIGURE} (?:over(?: the limit|(?=[),.;]|$))|remains)"
    rf"|does not fit|no verdict)"
    rf"|(?P<limit>limit (?:of )?{_FIGURE}|{_FIGURE} available)"
)


@dataclass(frozen=True, slots=True)
class Look:
    """How a text is laid out. The default is that of notes and logs: plain, below 100 columns.

    Attributes:
        width: The columns that a line has at most.
        color: Whether what matters most stands out by escape sequences.
        bars: Whether sizes in a table have a bar.
    """

    width: int = 99
    color: bool = False
    bars: bool = False

    def strong(self, text: str) -> str:
        """Text in bold."""
        return self._styled(_STRONG, text)

    def marked(self, text: str) -> str:
        """Text whose limits, and what exceeds them, have a color."""
        if not self.color:
            return text
        return _MARKED.sub(
            lambda found: self._styled(_OVER if found["over"] else _LIMIT, found[0]), text
        )

    def bar(self, part: float, cells: int) -> str:
        """A bar of at most `cells` columns for a part between 0 and 1; "" without bars."""
        if not self.bars:
            return ""
        eighths = max(1, round(min(max(part, 0.0), 1.0) * cells * 8))
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()

    def _styled(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.color and text else text


PLAIN = Look()
