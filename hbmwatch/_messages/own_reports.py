"""Reads hbmwatch's own reports and errors, as texts in a log.

`_report/text.py` writes them: a title, and the binding figures, each of which may be absent.
"""

from __future__ import annotations

from typing import Any

from hbmwatch._messages.wording import Wording
from hbmwatch._records.message import OomMessage
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
    if space != "memory":  # what a CPU has
        plain = "hbm" if space in ("HBM", "device memory") else space.removesuffix(" memory")
        fields.setdefault("memory_space", plain.lower())
