"""The figures of a message, collected as the fields of an OomMessage.

While a message is read, its fields are a dict. "totals" holds the named totals and
"resolution_bytes" how coarse each figure is; both are there from the start.
"""

from __future__ import annotations

import re
from typing import Any

from hbmwatch._records.sizes import Size, read_size

# The memory of a device is larger, and no on-chip memory is.
LARGEST_ON_CHIP = 2**30
# The BFC allocator rounds a request up to a multiple of 256 bytes.
_ROUNDED_UP = 255


def read_figures(match: re.Match[str]) -> dict[str, Any]:
    """The fields of an OomMessage that a match of Wording.matches states."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}}
    for group, text in match.groupdict().items():
        if text is None:
            continue
        name = group.removeprefix("approx_").removeprefix("rounded_up_")
        if name.startswith("total_"):
            add_total(fields, name.removeprefix("total_").replace("_", " "), text)
        elif name.endswith("_bytes"):
            size = read_size(text)
            rounded_up = group.startswith("rounded_up_")
            refine(fields, name, Size(size[0], _ROUNDED_UP) if size and rounded_up else size)
        elif name in ("memory_space", "named_space"):
            fields["memory_space"] = text.lower()  # people write it in capitals
        else:
            fields[name] = text
    return fields


def refine(fields: dict[str, Any], name: str, size: Size | None) -> None:
    """Set a field that is not set yet, or replace it by a figure that agrees and is more exact."""
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
    """Set a named total to the size that the text states; the first of a name stays."""
    size = read_size(text)
    if size and name not in fields["totals"]:
        fields["totals"][name] = size.size_bytes
        if size.resolution_bytes:
            fields["resolution_bytes"][name] = size.resolution_bytes


def merge(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the fields that are not set yet, and the figures that are more exact."""
    resolution = more.get("resolution_bytes", {})
    for name, value in more.items():
        if name == "totals":
            for total, size_bytes in value.items():
                fields["totals"].setdefault(total, size_bytes)
                if total in resolution:
                    fields["resolution_bytes"].setdefault(total, resolution[total])
        elif name.endswith("_bytes") and name != "resolution_bytes":
            refine(fields, name, Size(value, resolution.get(name, 0)))
        elif name != "resolution_bytes":
            fields.setdefault(name, value)
