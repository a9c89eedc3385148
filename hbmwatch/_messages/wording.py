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

from hbmwatch._records.message import OomMessage
from hbmwatch._records.sizes import COUNT, SIZE, Size, read_size

Role = Literal["failure", "code", "log", "attempt", "part", "entry", "echo", "detail"]

_PLACEHOLDER = re.compile(r"<(#?)(\w+)>")
_WORDS = {
    "allocator": r"[\w/:-]{1,80}(?:\.\w{1,80}){0,4}",
    "code": r"E\d{4}",
    "device": r"[\w/:.-]{0,200}\w",
    "memory_space": r"[a-z][a-z0-9_]{0,30}",
    "module": r"[\w.<>-]{0,500}[\w>]",
    "space": r"\d{1,4}",
}
# The BFC allocator rounds a request up to a multiple of this, less one.
_ROUNDED_UP = 255


class Wording(NamedTuple):
    """One template of an OOM.

    Attributes:
        name: A name for tests and debugging.
        says: What the wording itself says, whatever its figures are.
        anchor: The literal text that it begins with.
        pattern: The rest, as a regular expression. "<name>" stands for a field: a size with its
            unit where the name ends in "_bytes", bare bytes with "#" in front, a named total where
            it begins with "total_". "about_x_bytes" is a coarser and "up_x_bytes" a rounded-up
            figure of x_bytes.
        role: "failure": the text of an error. "code": the error code in front of one. "log": what
            an allocator logs before it fails. "attempt": what it logs on the way, which need not
            be a failure. "part": more of an error's text, which is also posted alone. "entry": one
            of the allocations that it lists, likewise. "echo": the cause that other errors quote,
            also posted alone. "detail": further figures, which are no OOM by themselves.
        needle: Literal text of the pattern, where the anchor alone is a common phrase: without it
            the text is not searched any further.
    """

    name: str
    says: OomMessage
    anchor: str
    pattern: str = ""
    role: Role = "failure"
    needle: str = ""

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """All places in a flat text where the wording stands, in linear time."""
        start = text.find(self.anchor) if self.needle in text else -1
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
    for group, text in match.groupdict().items():
        if text is None:
            continue
        name = group.removeprefix("about_").removeprefix("up_")
        if name.startswith("total_"):
            add_total(fields, name.removeprefix("total_").replace("_", " "), text)
        elif name.endswith("_bytes"):
            size = read_size(text)
            rounded_up = group.startswith("up_")
            refine(fields, name, Size(size[0], _ROUNDED_UP) if size and rounded_up else size)
        else:
            fields[name] = text
    return fields


def refine(fields: dict[str, Any], name: str, size: Size | None) -> None:
    """Sets a field that is not set yet, or to a figure that agrees and is more exact."""
    if size is None:
        return
    coarse = fields["resolution_bytes"].get(name, 0)
    agrees = abs(fields.get(name, size.size_bytes) - size.size_bytes) <= coarse
    if name not in fields or (size.resolution_bytes < coarse and agrees):
        fields[name] = size.size_bytes
        fields["resolution_bytes"].pop(name, None)
        if size.resolution_bytes:
            fields["resolution_bytes"][name] = size.resolution_bytes


def add_total(fields: dict[str, Any], name: str, text: str) -> None:
    """Sets a named total to the size that the text states, if it is the first of that name."""
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
