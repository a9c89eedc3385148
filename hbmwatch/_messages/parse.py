"""Is this text a device-memory OOM, and what does it say?

`log_text` removes colors, prefixes of lines and escapes, and turns every run of white space into
one space, which also mends phrases that break over lines. `statements` finds the wordings of the
tables in this flat text and groups them by OOM, and `build` reads the figures of each group. All
steps take time in proportion to the text.
"""

from __future__ import annotations

import re

from hbmwatch._messages.build import build_message
from hbmwatch._messages.log_text import collapse_whitespace, strip_log_decoration
from hbmwatch._messages.statements import Oom, find_ooms
from hbmwatch._messages.table import HINTS
from hbmwatch._records.message import OomMessage

# A shorter text is read whole.
_SHORT = 1 << 16
# How much of a longer text is read before its first hint, and after its last one.
_BEFORE_HINT, _AFTER_HINT = 2000, 1 << 16


def parse_oom(text: str) -> OomMessage | None:
    """The first device-memory OOM in a text, or None.

    It reads the messages of XLA's compilers, runtimes and allocators, and of the CUDA and ROCm
    libraries that they use. It returns None for a text that only mentions memory, for a limit of
    one GPU kernel, for a warning that says that it is no failure, and for PyTorch's own "CUDA out
    of memory". An on-chip memory space that ran out (vmem, smem, ...) is an OOM of that space.

    Args:
        text: An exception's text, a traceback or a log, with or without what a logger or a
            terminal adds. It is returned unchanged as the message's text.
    """
    _, flat_text, ooms = _read(text)
    return build_message(text, flat_text, ooms[0]) if ooms else None


def parse_ooms(text: str) -> tuple[OomMessage, ...]:
    """All device-memory OOMs in a text, in order.

    If there is one, its text is the given text. If there are several, the text of each is the
    part that it was read from, without colors and without what a log puts before each line.
    """
    plain_text, flat_text, ooms = _read(text)
    if len(ooms) == 1:
        return (build_message(text, flat_text, ooms[0]),)
    parts = _split_text(plain_text, flat_text, ooms)
    return tuple(build_message(part, flat_text, oom) for part, oom in zip(parts, ooms, strict=True))


def _read(text: str) -> tuple[str, str, list[Oom]]:
    """The text without log decoration, the same as flat text, and the OOMs in it."""
    plain_text = strip_log_decoration(_relevant_part(text))
    flat_text = collapse_whitespace(plain_text)
    ooms = list(find_ooms(flat_text))
    if not ooms and len(plain_text) < _SHORT:
        # A terminal breaks lines within words too.
        joined = plain_text.replace("\n", "")
        flat_joined = collapse_whitespace(joined)
        return joined, flat_joined, list(find_ooms(flat_joined))
    return plain_text, flat_text, ooms


def _relevant_part(text: str) -> str:
    """The part of a long text that can be about memory; most of a log is not."""
    if len(text) < _SHORT:
        return text
    places = [place for word in HINTS if (place := text.find(word)) >= 0]
    if not places:
        return ""
    last = max(text.rfind(word) for word in HINTS)
    return text[max(0, min(places) - _BEFORE_HINT) : last + _AFTER_HINT]


def _split_text(plain_text: str, flat_text: str, ooms: list[Oom]) -> list[str]:
    """The lines of the plain text for each OOM; plain and flat text have the same words."""
    edges = []
    position = words = 0
    for oom in ooms:
        words += flat_text.count(" ", position, oom.start)
        position = oom.start
        ends = (oom.stated_end, oom.end)
        stated, last = (words + flat_text[oom.start : end].rstrip().count(" ") for end in ends)
        edges.append((words, stated, last))
    needed = {word for edge in edges for word in edge}
    found = enumerate(re.finditer(r"\S+", plain_text))
    spans = {word: match.span() for word, match in found if word in needed}
    starts = [plain_text.rfind("\n", 0, spans[first][0]) + 1 for first, _, _ in edges]
    next_starts = [*starts, len(plain_text)][1:]
    parts, end = [], 0
    for (_, stated, last), line_start, next_start in zip(edges, starts, next_starts, strict=True):
        start = max(end, line_start)
        # The beginning of the next OOM's line belongs to that one.
        end = max(spans[stated][1], min(spans[last][1], next_start))
        parts.append(plain_text[start:end].strip())
    return parts
