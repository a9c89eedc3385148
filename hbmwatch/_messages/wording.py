"""A row of the tables of wordings: a text that states an OOM, with places for its figures.

A row finds its literal anchor by plain search and matches one regular expression there. A text
without the anchor costs next to nothing, and its expression is never compiled. The texts are flat:
every run of white space is one space.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from hbmwatch._records.message import OomMessage
from hbmwatch._records.sizes import COUNT, SIZE

Source = Literal[
    "error",
    "code",
    "log",
    "retry_log",
    "continuation",
    "allocation_entry",
    "quoted",
    "extra_figures",
    "report",
]

_PLACEHOLDER = re.compile(r"<(#?)(\w+)>")
_FIELD_PATTERNS = {
    "allocator": r"[\w/:-]{1,80}(?:\.\w{1,80}){0,4}",
    "code": r"E\d{4}",
    # An underscore ends italics.
    "device": r"(?:ND \d{1,4}:NC \d{1,4}|[\w/:.-]{0,200}[^\W_])",
    "memory_space": r"[a-z][a-z0-9_]{0,30}",
    "module": r"[\w.<>-]{0,500}[\w>]",
    "named_space": r"[A-Za-z]{1,30}",  # in a person's words
    "report_device": r"[\w-]{1,40}",
    "report_phase": r"(?:while compiling|at run time)",
    "report_space": r"(?:HBM|(?:device |host |SparseCore )?memory|[A-Z]{3,10}|[Ll]1|dram)",
    "space": r"\d{1,4}",
}


class Wording(NamedTuple):
    """A text that states an OOM.

    For example, the row with the anchor "Allocator (" and the pattern
    `<allocator>\\) ran out of memory trying to allocate <approx_requested_bytes> \\(rounded to
    <#rounded_up_requested_bytes>\\)` reads "Allocator (GPU_0_bfc) ran out of memory trying to
    allocate 5.96GiB (rounded to 6402138112)".

    Attributes:
        name: A name for tests and debugging.
        implies: What the text says whatever its figures are: the platform, the phase, ...
        anchor: The literal text that it begins with.
        pattern: The rest, as a regular expression with placeholders for fields. "<x_bytes>" is a
            size with its unit, "<#x_bytes>" a number of bytes without unit, "<approx_x_bytes>" a
            coarser figure of x_bytes, "<rounded_up_x_bytes>" one that an allocator rounded up,
            "<total_x>" a named total. Other names, such as "<module>", are words.
        source: Where the text comes from. "error": an error's own text. "code": the error code in
            front of one. "log": what an allocator logs before it fails. "retry_log": what it logs
            while it retries, which need not end in a failure. "continuation": more of an error's
            text, which people also post alone. "allocation_entry": an entry of an error's list of
            allocations, likewise. "quoted": the cause that other errors quote, likewise.
            "extra_figures": further figures, which are no OOM by themselves. "report": a report
            of hbmwatch on an error, or the line that HbmOomError adds to it.
        needle: Literal text of the pattern, for an anchor that is a common phrase: a text without
            the needle is not searched for the anchor.
        after: A regular expression for a word that stands shortly before, where others use the
            same words too.
    """

    name: str
    implies: OomMessage
    anchor: str
    pattern: str = ""
    source: Source = "error"
    needle: str = ""
    after: str = ""

    def matches(self, text: str, *, in_capitals: bool = False) -> Iterator[re.Match[str]]:
        """All places in a flat text where the wording stands, in linear time.

        Args:
            text: The flat text.
            in_capitals: Find the wording where somebody has written all of it in capitals.
        """
        anchor, needle = self.anchor, self.needle
        if in_capitals:
            anchor, needle = anchor.upper(), needle.upper()
        start = text.find(anchor) if needle in text else -1
        if start < 0:
            return
        matcher = _compiled(anchor, self.pattern, re.IGNORECASE if in_capitals else 0)
        while start >= 0:
            match = matcher.match(text, start)
            if match and self._fits(match) and (match[0].isupper() or not in_capitals):
                yield match
            start = text.find(anchor, start + len(anchor))

    def _fits(self, match: re.Match[str]) -> bool:
        """Whether the text before a match lets it be what the row says."""
        before = match.string[max(0, match.start() - _SHORTLY_BEFORE) : match.start()]
        if self.after and not re.search(self.after, before):
            return False
        return not (self._may_have_other_cause(match) and _has_other_cause(match))

    def _may_have_other_cause(self, match: re.Match[str]) -> bool:
        """Whether it is an allocation that fails on a GPU, and the words do not say why.

        Then it is no OOM if CUDA or ROCm names another error: after an illegal access, each
        allocation fails.
        """
        is_failure = self.source in ("error", "log", "retry_log", "quoted")
        may_be_gpu = self.implies.platform in ("gpu", None)
        return is_failure and may_be_gpu and not _REASON.search(match[0])


# Words that say that memory ran out, and not only that an allocation failed.
_REASON = re.compile(
    r"out ?_?of ?_?(?:\w{1,20} )?(?:memory|resources)|exhausted|exceeds|not enough|\boom\b"
    r"|memoryallocation|memory_error|bytes free|free mem",
    re.IGNORECASE,
)
# The names of errors of CUDA and ROCm, and how NCCL and the runtimes quote their texts.
_GPU_ERROR = re.compile(
    r"[CcHh](?:uda|UDA|ip|IP)(?: failure:?(?: \d{1,4})? '([^']{1,80})| error: (\w[\w ]{1,60})"
    r"|_ERROR_(\w{1,60})|Error([A-Z]\w{1,60}))"
    r"|(?:CUDA|HIP)(?: FAILURE:?(?: \d{1,4})? '([^']{1,80})| ERROR: ([A-Z][A-Z ]{1,60})"
    r"|ERROR([A-Z]\w{1,60}))"
)
_GPU_MEMORY_OR_HARMLESS = re.compile(
    r"out ?_?of ?_?memory|Memory_?Allocation|not ?_?ready|not ?_?supported|no ?_?device\b"
    # The driver reports a host that pins no more memory as an error of the operating system.
    r"|peer ?_?access|not ?_?found|operating_system|OS call failed",
    re.IGNORECASE,
)
_CAUSE_BEFORE = 2000
_SHORTLY_BEFORE = 300
# Between an allocation and the error that it ends with: "bytes; result: CUDA_ERROR_...".
_TO_CAUSE = re.compile(r"(?: bytes)?[)'\"]{0,2}[:;] (?:result: )?(?:(?!CUDA|HIP)[A-Z_]{3,40}: )?")

# Between two sentences of a message: what ends the first one, and what a person puts between them,
# such as a bullet, a dash or the marks of code. "12.2G free`, - `There are" has all of it.
_MARKS = r"[^\w\s]{1,4}"
BETWEEN = rf"(?:{_MARKS})?(?: {_MARKS}(?= )){{0,2}} (?:{_MARKS})?"

# What the BFC allocator of a device logs of itself after its limit.
STATISTICS = (
    " InUse: <#total_InUse>(?= )",
    " MaxInUse: <#total_MaxInUse>(?= )",
    rf" NumAllocs: {COUNT}(?= )",
    " MaxAllocSize: <#total_MaxAllocSize>(?= )",
    " Reserved: <#total_Reserved>(?= )",
    " PeakReserved: <#total_PeakReserved>(?= )",
)


def optional(*pieces: str) -> str:
    """A pattern for a text that can be cut off before each of its pieces."""
    return "".join(f"(?:{piece}" for piece in pieces) + ")?" * len(pieces)


def _has_other_cause(match: re.Match[str]) -> bool:
    """Whether the error of CUDA or ROCm that is named next to an allocation is not memory.

    That is the one that its text ends with, else the last one that is named shortly before.
    """
    text = match.string
    joint = _TO_CAUSE.match(text, match.end())
    named = _GPU_ERROR.match(text, joint.end()) if joint else None
    if named is None:
        start = match.start()
        before = _GPU_ERROR.finditer(text, max(0, start - _CAUSE_BEFORE), start)
        named = next(reversed(list(before)), None)
    return named is not None and not _GPU_MEMORY_OR_HARMLESS.match(named[named.lastindex or 0])


@functools.cache
def _compiled(anchor: str, pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(re.escape(anchor) + _PLACEHOLDER.sub(_expression, pattern), flags)


def _expression(placeholder: re.Match[str]) -> str:
    """The regular expression for a placeholder; its group has the placeholder's name."""
    bare, name = placeholder.groups()
    if bare:
        return f"(?P<{name}>{COUNT})"
    is_size = name.endswith("_bytes") or name.startswith("total_")
    return f"(?P<{name}>{SIZE if is_size else _FIELD_PATTERNS[name]})"
