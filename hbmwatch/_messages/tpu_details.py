"""What an XLA:TPU message says after its first sentence: totals, and the memory of the device."""

from __future__ import annotations

import re
from typing import Any

from hbmwatch._messages.allocations import add_ops, failed_allocation, tpu_allocations
from hbmwatch._messages.figures import add_total, refine
from hbmwatch._records.sizes import COUNT, SIZE, read_size

# The numbers of MLIR's memory spaces in messages about SparseCore.
_SPACES = {"0": "smem", "201": "tilespmem", "202": "spmem", "203": "hbm", "204": "sflag"}
# A table ends at most this many characters after its first line, and after each of its lines; more
# of a log follows.
_TABLE_REACH, _LINE_REACH = 4000, 200

# re compiles these when they are first used: most texts need none of them.
_BREAKDOWN_START = r"Total \w{1,30} usage >= |Program \w{1,30} requirement "
_BREAKDOWN_LINE = (
    rf"Total \w{{1,30}} usage >= (?P<total>{SIZE})"
    rf"|Output size (?P<output>{SIZE})"
    rf"|shares (?P<shared>{SIZE}) with arguments"
    rf"|Max free chunk (?P<largest>{SIZE})"
    rf"|Program \w{{1,30}} requirement (?P<requirement>{SIZE})"
    rf"|(?<!\S)(?P<name>HLO temp|heap allocations|[a-z]{{1,30}})(?:\([^()]{{1,80}}\)"
    rf"| \([^()]{{1,80}}\))? (?P<size>(?=[\d.]{{1,20}}[BKMGTP]){SIZE})"
    r"|(?P<end>Largest program allocations)"
)
_UTILIZATION = (
    rf"HLO temp +{SIZE} \([^()]{{0,80}}?(?:Unpadded \((?P<unpadded>{SIZE})\)"
    rf"(?: Padded \((?P<padded>{SIZE})\))?)?[^()]{{0,40}}?fragmentation \((?P<lost>{SIZE})\)"
)
_CAPACITY = rf"HBM capacity ({SIZE}):"
_CAPACITY_LINE = rf"([A-Z][\w-]{{1,40}}(?: [\w-]{{1,40}}){{1,3}}): {SIZE} \( ?({COUNT}) bytes\)"
_DEVICE = r"(?:\(|in memory )(\d{1,4}x\d{1,4}x\d{1,4}_([A-Z]{1,10})\d{1,3})(?:\)|;|$)"


def add_tpu_details(fields: dict[str, Any], text: str) -> None:
    """Add to an OomMessage's fields what the rest of a flat XLA:TPU message says."""
    _add_breakdown(fields, text)
    _add_capacity_table(fields, text)
    device = re.search(_DEVICE, text[:_TABLE_REACH])
    if device and fields["phase"] == "run":
        fields["device"] = device[1]
        fields["memory_space"] = device[2].lower()
    space = _SPACES.get(fields.pop("space", ""))
    if space:
        fields["memory_space"] = space
    memory_space = fields.get("memory_space") or "hbm"
    add_ops(
        fields,
        tuple(tpu_allocations(text, memory_space))
        or failed_allocation(text, fields.get("requested_bytes"), memory_space),
    )


def _add_breakdown(fields: dict[str, Any], text: str) -> None:
    """Add "Total hbm usage >= 22.25G: reserved 258.00M ... Program hbm requirement ..."."""
    start = re.search(_BREAKDOWN_START, text)
    if not start:
        return
    end = 0
    for match in re.finditer(_BREAKDOWN_LINE, text[start.start() :][:_TABLE_REACH]):
        if match["end"] or match.start() - end > _LINE_REACH:
            break
        end = match.end()
        if match["largest"]:
            refine(fields, "largest_free_bytes", read_size(match["largest"]))
        else:
            _add_breakdown_line(fields, match)
    utilization = re.search(_UTILIZATION, text[start.start() :])
    if utilization:
        for name in ("unpadded", "padded"):
            if utilization[name]:
                add_total(fields, f"HLO temp {name}", utilization[name])
        refine(fields, "fragmentation_bytes", read_size(utilization["lost"]))


def _add_breakdown_line(fields: dict[str, Any], match: re.Match[str]) -> None:
    """Add a line to the totals; it is what the program needs where no sentence says so."""
    names = {
        "total": match[0].partition(" >= ")[0],
        "output": "Output size",
        "shared": "shared with arguments",
        "requirement": match[0].partition(" requirement")[0] + " requirement",
        "size": match["name"],
    }
    group = match.lastgroup or ""
    add_total(fields, names[group] or "", match[group])
    stated = {"used_bytes", "requested_bytes"} & fields.keys()
    if group in ("total", "requirement") and fields["phase"] == "compile" and not stated:
        refine(fields, "used_bytes", read_size(match[group]))


def _add_capacity_table(fields: dict[str, Any], text: str) -> None:
    """Add the table of 2020's runtime: "HBM capacity 8.00G: ... Program requirement: 3.95G"."""
    capacity = re.search(_CAPACITY, text)
    if not capacity:
        return
    refine(fields, "limit_bytes", read_size(capacity[1]))
    for name, size in re.findall(_CAPACITY_LINE, text[capacity.end() :][:_TABLE_REACH]):
        add_total(fields, name, size)
        if name == "Program requirement":
            refine(fields, "requested_bytes", read_size(size))
