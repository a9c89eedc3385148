"""Reads hbmwatch's own reports and errors, as texts in a log.

`_report/text.py` writes them: a title, and the binding figures, each of which may be absent.
"""

from __future__ import annotations

import re
from typing import Any

from hbmwatch._messages.wording import Wording
from hbmwatch._records.message import OomMessage
from hbmwatch._records.process import Process
from hbmwatch._records.sizes import SIZE

_FIGURES = "".join(
    f"(?:(?:; )?{figure})?"
    for figure in (
        "requested <requested_bytes>",
        "needs <used_bytes>(?: per device)?",
        f"(?:limit |(?={SIZE} available))<limit_bytes>(?: available)?",
        "<exceeded_by_bytes> over the limit",
        "<total_InUse> in use",
        "<free_bytes> free",
        "largest free block <largest_free_bytes>",
    )
)
_FIRST_FIGURE = (
    "(?=requested |needs |limit |largest free block "
    f"|{SIZE} (?:available|over the limit|in use|free))"
)
# A device is known by the first word of its kind: "TPU v5 lite", "NVIDIA H100 80GB HBM3".
_PLATFORMS = {"TPU": "tpu", "CPU": "cpu"}

WORDINGS = (
    Wording(
        "report",
        OomMessage(""),
        "hbmwatch: ",
        r"\S.{0,200}? ran out of <report_space>(?: <report_phase>)?(?: (?:for|on) <report_device>)?"
        rf"(?:[\w ./()-]{{0,60}}?(?: ?\(<code>\))?:? {_FIRST_FIGURE}{_FIGURES})?",
        "report",
    ),
)


def read_report(fields: dict[str, Any]) -> None:
    """Put the words of a report among the fields of its OomMessage."""
    space = fields.pop("report_space", None)
    phase = fields.pop("report_phase", None)
    device = fields.pop("report_device", None)
    if space is None:
        return
    if device is not None:
        fields.setdefault("platform", _PLATFORMS.get(device, "gpu"))
    if phase is not None:
        fields.setdefault("phase", "compile" if phase == "while compiling" else "run")
    if space == "SparseCore memory":  # the code says which of its errors it is
        return
    if space != "memory":  # what a CPU has
        plain = "hbm" if space in ("HBM", "device memory") else space.removesuffix(" memory")
        fields.setdefault("memory_space", plain.lower())


_FUNCTION = re.compile(r"hbmwatch: (\S.{0,60}?) ran out of ")
# The first line of a report has no figures; the last line of an HbmOomError has.
_TITLE = re.compile(r"hbmwatch: \S[^\n]{0,200}? ran out of [^\n:]{1,200}\n[ \t]")
_NO_FUNCTION = "the program"  # what a report writes if it does not know the name
_PROCESS = re.compile(
    r" process (?P<index>\d{1,7}) of (?P<count>\d{1,7})(?:, on (?P<host>[\w.-]{1,253}))?"
    r"(?:, slice (?P<slice>\d{1,7}))?(?:, devices? [\d, -]{0,200}\d)?"
    r"(?:, at (?P<time>\d{4}-[\dT:.-]{1,30}Z))?"
)


def has_report(text: str) -> bool:
    """Whether a text has a report of hbmwatch, and not only its headline."""
    return bool(_TITLE.search(text))


def reported_function(text: str) -> str:
    """The function that a report in a text is about; "" where it names none."""
    found = _FUNCTION.search(text)
    return found[1] if found and found[1] != _NO_FUNCTION else ""


def reported_process(text: str) -> Process | None:
    """The process of a job of several that a report in a text names; its devices are left out."""
    found = _PROCESS.search(" ".join(text.split()))
    if found is None:
        return None
    return Process(
        index=int(found["index"]),
        count=int(found["count"]),
        host=found["host"] or "",
        time=found["time"] or "",
        slice_index=None if found["slice"] is None else int(found["slice"]),
    )
