"""What one row of a table of wordings is: an OOM template, and how its figures are read.

A row finds its literal anchor by plain search and matches one regular expression there, so that a
text without the anchor costs next to nothing and no expression is compiled in vain. The texts are
flat: every run of white space is one space (hbmwatch._message).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from hbmwatch._records import OomMessage
from hbmwatch._sizes import COUNT, SIZE, read_size

Role = Literal["failure", "log", "part", "detail"]

_PLACEHOLDER = re.compile(r"<(#?)(\w+)>")
_WORDS = {
    "allocator": r"[\w./:-]{1,80}?(?=[.,;)\s]|$)",
    "code": r"E\d{4}",
    "device": r"[\w:./-]{1,80}\w",
    "memory_space": r"[a-z][a-z0-9_]{0,30}",
    "module": r"[\w.<>-]{1,500}",
    "partition": r"\d{1,9}",
    "replica": r"\d{1,9}",
}


class Wording(NamedTuple):
    """One template of an OOM.

    Attributes:
        name: A name for tests and debugging.
        says: What the wording itself says, whatever its figures are.
        anchor: The literal text that it begins with.
        pattern: The rest, as a regular expression. "<name>" stands for a field: a size with its
            unit where the name ends in "_bytes", bare bytes with "#" in front, a named total where
            it begins with "total_". "about_x_bytes" is a coarser figure that counts where x_bytes
            is absent.
        role: "failure": the text of an error. "log": what the allocator logs before the error.
            "part": further text of an error, which can also stand alone. "detail": further text
            that is no OOM by itself.
    """

    name: str
    says: OomMessage
    anchor: str
    pattern: str = ""
    role: Role = "failure"

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """All places in a flat text where the wording stands, in linear time."""
        start = text.find(self.anchor)
        if start < 0:
            return
        matcher = _compiled(self.anchor, self.pattern)
        while start >= 0:
            match = matcher.match(text, start)
            if match:
                yield match
            start = text.find(self.anchor, start + len(self.anchor))


def optional(*pieces: str) -> str:
    """A pattern for a text that can be cut off before each of its pieces."""
    return "".join(f"(?:{piece}" for piece in pieces) + ")?" * len(pieces)


def read_figures(match: re.Match[str]) -> dict[str, Any]:
    """The fields of an OomMessage that a match of Wording.matches states."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}}
    about = {}
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name.startswith("about_"):
            about[name.removeprefix("about_")] = text
        elif name.startswith("total_"):
            add_total(fields, name.removeprefix("total_").replace("_", " "), text)
        elif name.endswith("_bytes"):
            add_size(fields, name, text)
        else:
            fields[name] = int(text) if name in ("replica", "partition") else text
    for name, text in about.items():
        if name not in fields:
            add_size(fields, name, text)
    return fields


def add_size(fields: dict[str, Any], name: str, text: str) -> None:
    """Sets a field to the size that the text states, if it states one."""
    size = read_size(text)
    if size:
        fields[name] = size.size_bytes
        if size.resolution_bytes:
            fields["resolution_bytes"][name] = size.resolution_bytes


def add_total(fields: dict[str, Any], name: str, text: str) -> None:
    """Sets a named total to the size that the text states, if it states one."""
    size = read_size(text)
    if size and name not in fields["totals"]:
        fields["totals"][name] = size.size_bytes
        if size.resolution_bytes:
            fields["resolution_bytes"][name] = size.resolution_bytes


@functools.cache
def _compiled(anchor: str, pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(anchor) + _PLACEHOLDER.sub(_expression, pattern))


def _expression(placeholder: re.Match[str]) -> str:
    bare, name = placeholder.groups()
    if bare:
        return f"(?P<{name}>{COUNT})"
    is_size = name.endswith("_bytes") or name.startswith("total_")
    return f"(?P<{name}>{SIZE if is_size else _WORDS[name]})"
