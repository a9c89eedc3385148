"""How XLA:TPU says that memory ran out, from 2019 to libtpu 0.0.50.

https://openxla.org/xla/errors/error_1000 and its neighbours document a few of these templates; libtpu
is closed, so the others come from messages that were posted or provoked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hbmwatch._records import Kind, OomMessage, PeakOp
from hbmwatch._sizes import SIZE, read_size
from hbmwatch._wording import Wording, add_size, add_total, optional

_COMPILE = OomMessage("", platform="tpu", phase="compile")
_COMPILE_HBM = OomMessage("", platform="tpu", phase="compile", memory_space="hbm")
_RUN = OomMessage("", platform="tpu", phase="run", memory_space="hbm", pool="allocator")

WORDINGS = (
    Wording(
        "tpu-stack",
        _COMPILE,
        "Ran out of memory in memory space ",
        "<memory_space> while allocating on stack",
    ),
    Wording(
        "tpu-scoped",
        _COMPILE,
        "Scoped allocation with size ",
        "<requested_bytes>" + optional(
            " and limit <limit_bytes>",
            " exceeded scoped <memory_space> limit by <exceeded_by_bytes>",
        ),
        "part",
    ),
    Wording(
        "tpu-space",
        _COMPILE,
        "Ran out of memory in memory space ",
        "<memory_space>" + optional(
            r"[.,;:]? Used <used_bytes>",
            r" of <limit_bytes>",
            r" \w+\. Exceeded \w+ capacity by <exceeded_by_bytes>",
        ),
    ),
    Wording(
        "tpu-total",
        _COMPILE_HBM,
        "Ran out of memory on HBM",
        optional(
            r",? the total memory required for HLO temporaries \(<used_bytes>\)",
            r" exceeds available HBM \(<limit_bytes>\)",
            r"\. HLO module: <module>(?<!\.)",
        ),
    ),
    Wording(
        "tpu-total-tail",
        _COMPILE_HBM,
        "total memory required for HLO temporaries (",
        r"<used_bytes>\)" + optional(
            r" exceeds available HBM \(<limit_bytes>\)",
            r"\. HLO module: <module>(?<!\.)",
        ),
        "part",
    ),
    Wording(
        "tpu-allocation",
        _COMPILE,
        "Allocation (size=",
        r"<#requested_bytes>\) would exceed memory" + optional(
            r" \(size=<#limit_bytes>\)",
            r" :: #allocation\d+ \[shape = '[^']{0,2000}', space=<memory_space>",
        ),
    ),
    Wording(
        "tpu-early",
        _COMPILE_HBM,
        "Aborting compilation early because it's unlikely to have enough device memory",
        optional(r"\. Requires <used_bytes>", ", has <limit_bytes> available"),
    ),
    Wording(
        "tpu-cores",
        _COMPILE_HBM,
        "TPU TensorCore Hbm usage: ",
        "<total_TensorCore>" + optional(
            ", SparseCore Hbm usage:? <total_SparseCore>",
            ", exceeding available bytes: <limit_bytes>",
        ),
    ),
    Wording(
        "tpu-usage",
        _COMPILE,
        "Total ",
        "<memory_space> usage >= <about_used_bytes>",
        "part",
    ),
    Wording(
        "tpu-requirement",
        _COMPILE,
        "Program ",
        "<memory_space> requirement (?:<about_used_bytes>|unknown)",
        "part",
    ),
    Wording(
        "tpu-largest",
        _COMPILE,
        "Largest program allocations in ",
        "<memory_space>:",
        "part",
    ),
    Wording(
        "tpu-allocate",
        _RUN,
        "Attempting to allocate ",
        r"<requested_bytes>\. That was not possible" + optional(
            r"\. There are <free_bytes> free",
            r"\.(?: Due to fragmentation, the largest contiguous region of free memory is"
            r" <largest_free_bytes>\.?)?;? ?\(?",
            r"<device>\)",
        ),
    ),
    Wording(
        "tpu-reserve",
        _RUN,
        "Attempting to reserve ",
        r"<requested_bytes> at the bottom of memory" + optional(
            r"\. That was not possible\. There are <free_bytes> free",
            ", <total_reserved> reserved",
            ",? and <total_reservable> reservable",
        ),
    ),
    Wording(
        "tpu-request",
        OomMessage("", phase="run", memory_space="hbm", pool="allocator"),
        "Failed to allocate request for ",
        "<about_requested_bytes>" + optional(
            r" \((?:<requested_bytes>)\)", r" on device ordinal <device>(?!\w)"
        ),
    ),
)

_KINDS: tuple[tuple[str, Kind], ...] = (
    ("temp", "temporary"),
    ("scoped", "temporary"),
    ("param", "parameter"),
    ("arg", "parameter"),
    ("constant", "constant"),
    ("output", "output"),
)
_FIELD = re.compile(
    r"(Size|Operator|Shape|Unpadded size|Extra memory due to padding|XLA label|Tag"
    r"|Allocation type): "
)
_ENTRY = re.compile(r"(?<!\S)\d{1,4}\. Size: ")
_SECTION = re.compile(
    rf"Total \w+ usage >= (?P<total>{SIZE})"
    rf"|Output size (?P<output>{SIZE})"
    rf"|shares (?P<shared>{SIZE}) with arguments"
    rf"|(?<!\S)(?P<name>HLO temp|[a-z]+) +(?P<size>{SIZE})"
    rf"|Program \w+ requirement (?P<requirement>{SIZE})"
    r"|(?P<end>Largest program allocations)"
)
_UTILIZATION = re.compile(
    rf"HLO temp +{SIZE} \([^()]{{0,80}}?(?:Unpadded \((?P<unpadded>{SIZE})\)"
    rf"(?: Padded \((?P<padded>{SIZE})\))?)?[^()]{{0,40}}?fragmentation \((?P<lost>{SIZE})\)"
)
_ATTRIBUTE = re.compile(r'(op_name|source_file)="([^"]*)"|source_line=(\d{1,9})')
_LABEL = re.compile(r"%?([\w.-]+) = ")
_OPCODE = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_STACK_OP = re.compile(r"while allocating on stack for (%[\w.-]+ = )")
_BUFFER = re.compile(
    r"\[shape = '([^']{0,2000})',[^'\[\]]{0,400}tag = 'output of ([\w.-]+)@\{([\d,]*)\}'"
)


def add_details(fields: dict[str, Any], text: str) -> None:
    """Adds what a flat XLA:TPU message says after its first sentence."""
    _add_breakdown(fields, text)
    ops = tuple(_listed(text, fields.get("memory_space") or "hbm"))
    ops = ops or _single(fields, text)
    if ops:
        fields["ops"] = tuple(sorted(ops, key=lambda op: -op.size_bytes))


def _add_breakdown(fields: dict[str, Any], text: str) -> None:
    """Adds "Total hbm usage >= 22.25G: reserved 258.00M ... Program hbm requirement ..."."""
    start = re.search(r"Total \w+ usage >= |Program \w+ requirement ", text)
    if not start:
        return
    for match in _SECTION.finditer(text, start.start()):
        if match["end"]:
            break
        _add_section(fields, match)
    utilization = _UTILIZATION.search(text)
    if utilization:
        for name in ("unpadded", "padded"):
            if utilization[name]:
                add_total(fields, f"HLO temp {name}", utilization[name])
        add_size(fields, "fragmentation_bytes", utilization["lost"])


def _add_section(fields: dict[str, Any], match: re.Match[str]) -> None:
    names = {
        "total": match[0].partition(" >= ")[0],
        "output": "Output size",
        "shared": "shared with arguments",
        "requirement": match[0].partition(" requirement")[0] + " requirement",
        "size": match["name"],
    }
    group = match.lastgroup or ""
    add_total(fields, names[group] or "", match[group])


def _listed(text: str, memory_space: str) -> Iterator[PeakOp]:
    """The numbered largest allocations: "1. Size: 4.00G Operator: op_name=... Shape: ..."."""
    starts = [match.start() for match in _ENTRY.finditer(text)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        parts = _FIELD.split(text[start:end].partition(" =====")[0])[1:]
        entry = {name: value.strip() for name, value in zip(parts[::2], parts[1::2])}
        size = read_size(entry["Size"].partition(" ")[0])
        if size:
            yield _op(entry, size.size_bytes, memory_space)


def _op(entry: dict[str, str], size_bytes: int, memory_space: str) -> PeakOp:
    label = entry.get("XLA label", "")
    name = _LABEL.match(label)
    opcode = _OPCODE.search(label[name.end() :]) if name else None
    kind = entry.get("Allocation type", "")
    attributes = _ATTRIBUTE.finditer(entry.get("Operator", ""))
    operator = {match[1] or "line": match[2] or match[3] for match in attributes}
    frame = _frame(operator)
    return PeakOp(
        instruction=name[1] if name else label.partition(" ")[0].lstrip("%"),
        opcode=opcode[1] if opcode else "",
        op_name=operator.get("op_name") or "",
        shape=entry.get("Shape", ""),
        size_bytes=size_bytes,
        unpadded_bytes=_unpadded(entry, size_bytes),
        kind=next((kind_ for word, kind_ in _KINDS if word in kind.lower()), ""),
        memory_space=memory_space,
        source=frame.rpartition("/")[2],
        stack=(frame,) if frame else (),
    )


def _frame(operator: dict[str, str]) -> str:
    path = operator.get("source_file")
    return f"{path}:{operator['line']}" if path and "line" in operator else path or ""


def _unpadded(entry: dict[str, str], size_bytes: int) -> int:
    """The stated unpadded size; without one, no padding is claimed."""
    stated = read_size(entry.get("Unpadded size", "").partition(" ")[0])
    if stated:
        return stated.size_bytes
    padding = read_size(entry.get("Extra memory due to padding", "").partition(" ")[0])
    return size_bytes - padding.size_bytes if padding else size_bytes


def _single(fields: dict[str, Any], text: str) -> tuple[PeakOp, ...]:
    """The one allocation that failed, where the text names it and its size."""
    requested = fields.get("requested_bytes")
    space = fields.get("memory_space") or "hbm"
    if requested is None:
        return ()
    buffer = _BUFFER.search(text)
    if buffer:
        index = f"{{{buffer[3]}}}" if buffer[3] else ""
        return (PeakOp(buffer[2] + index, "", "", buffer[1], requested, requested, "", space),)
    stack = _STACK_OP.search(text)
    if stack:
        label = text[stack.start(1) :].partition(" Scoped allocation with size")[0]
        shape = label[len(stack[1]) :].partition(" ")[0]
        entry = {"XLA label": label, "Operator": label, "Shape": shape, "Allocation type": "scoped"}
        return (_op(entry, requested, space),)
    return ()
