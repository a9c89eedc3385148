"""How XLA:TPU says that memory ran out, from 2019 to libtpu 0.0.50.

https://openxla.org/xla/errors/error_1000 and its neighbours document a few of these templates;
libtpu is closed, so the others come from messages that were posted or provoked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hbmwatch._messages.wording import Wording, add_total, optional, refine
from hbmwatch._records.message import OomMessage, Phase
from hbmwatch._records.peak_op import Kind, PeakOp
from hbmwatch._records.sizes import COUNT, SIZE, read_size

_COMPILE = OomMessage("", platform="tpu", phase="compile")
_COMPILE_HBM = OomMessage("", platform="tpu", phase="compile", memory_space="hbm")
_RUN = OomMessage("", platform="tpu", phase="run", memory_space="hbm", pool="allocator")

# Other things have a usage and a capacity too.
_KNOWN = r"(?=(?:hbm|vmem|smem|cmem|sflag|spmem|tilespmem)\b)"
# Others try to allocate so much "of swap" or "for the cache".
_STOP = r"(?=\.? ?$|\. ?[A-Zt;(]|[^\w\s.])"
_ATTEMPT = rf"Attempting to (?:allocate {SIZE}{_STOP}|reserve {SIZE} at the bottom of memory)"

_CODES: tuple[tuple[str, str, Phase, str | None], ...] = (
    ("E0100", "RuntimeBufferAllocationFailure", "run", "hbm"),
    ("E0101", "RuntimeProgramAllocationFailure", "run", "hbm"),
    ("E1000", "CompileTimeHbmOom", "compile", "hbm"),
    ("E1001", "CompileTimeScopedVmemOom", "compile", "vmem"),
    ("E3000", "CompileTimeSparseCoreAllocationFailure", "compile", None),
)

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
        "<requested_bytes>"
        + optional(
            " and limit <limit_bytes>",
            " exceeded scoped <memory_space> limit",
            " by <exceeded_by_bytes>",
        ),
        "part",
    ),
    Wording(
        "tpu-space",
        _COMPILE,
        "Ran out of memory in memory space ",
        "<memory_space>"
        + optional(
            r"[.,;:]? Used <used_bytes>",
            r" of <limit_bytes>",
            r" \w{1,30}[.,;]? Exceeded \w{1,30} capacity by ~?<exceeded_by_bytes>",
        ),
    ),
    Wording(
        "tpu-used",
        _COMPILE,
        "Used ",
        rf"<used_bytes> of <limit_bytes> {_KNOWN}<memory_space>\. Exceeded \w{{1,30}} capacity by"
        " ~?<exceeded_by_bytes>",
        "part",
        needle=" capacity by ",
    ),
    Wording(
        "tpu-exceeded",
        _COMPILE,
        "Exceeded ",
        f"{_KNOWN}<memory_space> capacity by ~?<exceeded_by_bytes>",
        "part",
    ),
    Wording(
        "tpu-total",
        _COMPILE_HBM,
        "Ran out of memory on HBM",
        optional(
            r"[,.;:]? the total memory required for HLO temporaries \(<used_bytes>\)",
            r" exceeds available HBM \(<limit_bytes>\)",
        ),
    ),
    Wording(
        "tpu-total-alone",
        _COMPILE_HBM,
        "otal memory required for HLO temporaries (",
        r"<used_bytes>\)" + optional(r" exceeds available HBM \(<limit_bytes>\)"),
        "part",
    ),
    Wording(
        "tpu-temporaries",
        _COMPILE_HBM,
        "HLO temporaries",
        r"(?: \(<used_bytes>\))? exceeds available HBM(?: \(<limit_bytes>\))?",
        "part",
    ),
    Wording(
        "tpu-allocation",
        _COMPILE,
        "Allocation (size=",
        r"<#requested_bytes>\) would exceed memory"
        + optional(
            r" \(size=<#limit_bytes>\)",
            r" :: #allocation\d{1,9} \[shape = '[^']{0,2000}', space=<memory_space>",
        ),
    ),
    Wording(
        "tpu-early",
        _COMPILE_HBM,
        "unlikely to have enough ",
        "(?:device )?memory"
        + optional(r"\. Requires <used_bytes>", ", has <limit_bytes> available"),
    ),
    Wording(
        "tpu-cores",
        _COMPILE_HBM,
        "TensorCore Hbm usage: ",
        "<total_TensorCore_Hbm_usage>"
        + optional(
            ", SparseCore Hbm usage:? <total_SparseCore_Hbm_usage>",
            ", exceeding available bytes: <limit_bytes>",
        ),
    ),
    Wording(
        "tpu-embedding",
        _COMPILE_HBM,
        "due to lack of HBM space",
        optional(
            r"\. The HBM capacity available per TPU core \(<limit_bytes>\)",
            r" is smaller than the HBM requirement after padding \(<used_bytes>\)",
        ),
    ),
    Wording(
        "tpu-embedding-run",
        _RUN,
        "TPU embedding: out of memory allocating ",
        "<requested_bytes>",
    ),
    Wording(
        "tpu-host",
        OomMessage("", platform="tpu", phase="run", memory_space="host", pool="host"),
        "OOM in pinned host allocator",
    ),
    Wording(
        "tpu-usage",
        _COMPILE,
        "Total ",
        f"{_KNOWN}<memory_space> usage >= {SIZE}",
        "part",
    ),
    Wording(
        "tpu-requirement",
        _COMPILE,
        "Program ",
        f"{_KNOWN}<memory_space> requirement (?:{SIZE}|unknown)",
        "part",
    ),
    Wording(
        "tpu-largest",
        _COMPILE,
        "Largest program allocations in ",
        f"{_KNOWN}<memory_space>:",
        "part",
    ),
    Wording(
        "tpu-entry",  # of the listed allocations, where a log was cut in their midst
        _COMPILE,
        "Allocation type: ",
        r"(?:HLO temp|scoped|global)\b",
        "entry",
    ),
    Wording(
        "tpu-allocate",
        _RUN,
        "Attempting to allocate ",
        f"<requested_bytes>{_STOP}"
        + optional(
            r"\. That was not possible\. There are <free_bytes> free",
            r"\.(?: Due to fragmentation,)? [Tt]he largest contiguous region of free memory is"
            r" <largest_free_bytes>",
        ),
    ),
    Wording(
        "tpu-reserve",
        _RUN,
        "Attempting to reserve ",
        "<requested_bytes> at the bottom of memory"
        + optional(
            r"\. That was not possible\. There are <free_bytes> free",
            ", <total_reserved> reserved",
            ",? and <total_reservable> reservable",
        ),
    ),
    Wording(
        "tpu-buffer",
        _RUN,
        "Error allocating device buffer",
        rf"(?!: ?{_ATTEMPT})",
        "code",
    ),
    Wording(
        "tpu-loading",
        _RUN,
        "RESOURCE_EXHAUSTED: Error loading ",
        rf"(?:SparseCore )?program(?!(?: '[^']{{1,500}}')?: ?{_ATTEMPT})",
        "code",
    ),
    Wording(
        "tpu-permanent",
        _COMPILE,
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error",
        r"(?!\.? ?Ran out of memory (?:in memory space|on HBM))",
        "code",
    ),
    Wording(
        "request",
        OomMessage("", phase="run", memory_space="hbm", pool="allocator"),
        "ailed to allocate request for ",
        "<about_requested_bytes>"
        + optional(r" \(<requested_bytes>\)", r" on device ordinal <device>"),
    ),
    Wording(
        "tpu-sparse-core",
        OomMessage("", platform="tpu", phase="compile", code="E3000"),
        "op current allocation offset upper bound (",
        r"\d{1,20} words\) exceeds[\w \-]{1,200}\(\d{1,20} words\) in memory space <space>",
    ),
    *(
        Wording(
            f"tpu-{code}",
            OomMessage("", platform="tpu", phase=phase, code=code, memory_space=space),
            f"{code}: {name}",
            role="code",
        )
        for code, name, phase, space in _CODES
    ),
    *(
        Wording(
            f"tpu-{name}",
            OomMessage("", platform="tpu", phase=phase, memory_space=space),
            name,
            rf"(?:(?<=RESOURCE_EXHAUSTED: {name})|(?=:(?! ?\d)))"
            + optional(rf":? Used <used_bytes> of <limit_bytes> {_KNOWN}"),
            "code",
        )
        for code, name, phase, space in _CODES
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
_SPACES = {"0": "smem", "201": "tilespmem", "202": "spmem", "203": "hbm", "204": "sflag"}
# Expressions are left to re to compile and keep: most texts need none of these.
_FIELD = (
    r"(Size|Operator|Shape|Unpadded size|Extra memory due to padding|XLA label|Tag"
    r"|Allocation type): "
)
_ENTRY = r"(?<!\S)\d{1,4}\. Size: "
_SECTION = (
    rf"Total \w{{1,30}} usage >= (?P<total>{SIZE})"
    rf"|Output size (?P<output>{SIZE})"
    rf"|shares (?P<shared>{SIZE}) with arguments"
    rf"|Max free chunk (?P<largest>{SIZE})"
    rf"|Program \w{{1,30}} requirement (?P<requirement>{SIZE})"
    rf"|(?<!\S)(?P<name>HLO temp|heap allocations|[a-z]{{1,30}})(?:\([^()]{{1,80}}\)"
    rf"| \([^()]{{1,80}}\))? (?P<size>{SIZE})"
    r"|(?P<end>Largest program allocations)"
)
_ACCOUNT = rf"([A-Z][\w-]{{1,40}}(?: [\w-]{{1,40}}){{1,3}}): {SIZE} \( ?({COUNT}) bytes\)"
_CAPACITY = rf"HBM capacity ({SIZE}):"
_DEVICE = r"\((\d{1,4}x\d{1,4}x\d{1,4}_([A-Z]{1,10})\d{1,3})\)"
_SECTION_REACH = 4000
_UTILIZATION = (
    rf"HLO temp +{SIZE} \([^()]{{0,80}}?(?:Unpadded \((?P<unpadded>{SIZE})\)"
    rf"(?: Padded \((?P<padded>{SIZE})\))?)?[^()]{{0,40}}?fragmentation \((?P<lost>{SIZE})\)"
)
_ATTRIBUTE = r'(op_name|source_file)="([^"]*)"|source_line=(\d{1,9})'
_LABEL = r"%?([\w.-]+) = "
_OPCODE = r"(?:^|\s)([a-z][a-z0-9-]*)\("
_STACK_OP = r"while allocating on stack for (%[\w.-]+ = )"
_BUFFER = (
    r"\[shape = '([^']{0,2000})', space=[^']{0,200}?(scoped, )?tag = '([^']{0,4000})'\] ::"
    r" ([\w.-]+)?"
)
_OUTPUT = r"output of ([\w.-]+)@\{([\d,]*)\}"


def add_details(fields: dict[str, Any], text: str) -> None:
    """Adds what a flat XLA:TPU message says after its first sentence."""
    _add_breakdown(fields, text)
    _add_account(fields, text)
    device = re.search(_DEVICE, text[:_SECTION_REACH])
    if device and fields["phase"] == "run":
        fields["device"] = device[1]
        fields["memory_space"] = device[2].lower()
    space = _SPACES.get(fields.pop("space", ""))
    if space:
        fields["memory_space"] = space
    ops = tuple(_listed(text, fields.get("memory_space") or "hbm")) or _single(fields, text)
    if ops:
        fields["ops"] = tuple(sorted(ops, key=lambda op: -op.size_bytes))


def _add_breakdown(fields: dict[str, Any], text: str) -> None:
    """Adds "Total hbm usage >= 22.25G: reserved 258.00M ... Program hbm requirement ..."."""
    start = re.search(r"Total \w{1,30} usage >= |Program \w{1,30} requirement ", text)
    if not start:
        return
    for match in re.finditer(_SECTION, text[start.start() :][:_SECTION_REACH]):
        if match["end"]:
            break
        if match["largest"]:
            refine(fields, "largest_free_bytes", read_size(match["largest"]))
        else:
            _add_section(fields, match)
    utilization = re.search(_UTILIZATION, text[start.start() :])
    if utilization:
        for name in ("unpadded", "padded"):
            if utilization[name]:
                add_total(fields, f"HLO temp {name}", utilization[name])
        refine(fields, "fragmentation_bytes", read_size(utilization["lost"]))


def _add_section(fields: dict[str, Any], match: re.Match[str]) -> None:
    """Adds one line of the breakdown to the totals; the program's need, where no sentence has."""
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


def _add_account(fields: dict[str, Any], text: str) -> None:
    """Adds the table of 2020's runtime: "HBM capacity 8.00G: ... Program requirement: 3.95G"."""
    capacity = re.search(_CAPACITY, text)
    if not capacity:
        return
    refine(fields, "limit_bytes", read_size(capacity[1]))
    for name, size in re.findall(_ACCOUNT, text[capacity.end() :][:_SECTION_REACH]):
        add_total(fields, name, size)
        if name == "Program requirement":
            refine(fields, "requested_bytes", read_size(size))


def _listed(text: str, memory_space: str) -> Iterator[PeakOp]:
    """The numbered largest allocations: "1. Size: 4.00G Operator: op_name=... Shape: ..."."""
    starts = [match.start() for match in re.finditer(_ENTRY, text)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        parts = re.split(_FIELD, text[start:end].partition(" =====")[0])[1:]
        entry = {name: value.strip() for name, value in zip(parts[::2], parts[1::2])}
        size = read_size(entry["Size"].partition(" ")[0])
        if size:
            yield _op(entry, size.size_bytes, memory_space)


def _op(entry: dict[str, str], size_bytes: int, memory_space: str) -> PeakOp:
    label = entry.get("XLA label", "")
    name = re.match(_LABEL, label)
    opcode = re.search(_OPCODE, label[name.end() :]) if name else None
    kind = entry.get("Allocation type", "")
    attributes = re.finditer(_ATTRIBUTE, entry.get("Operator", ""))
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
    buffer = re.search(_BUFFER, text)
    if buffer:
        shape, scoped, tag, name = buffer.groups()
        output = re.match(_OUTPUT, tag)
        if output:
            name = output[1] + (f"{{{output[2]}}}" if output[2] else "")
        kind: Kind = "temporary" if scoped else ""
        return (PeakOp(name or "", "", "", shape, requested, requested, kind, space),)
    stack = re.search(_STACK_OP, text)
    if stack:
        label = text[stack.start(1) :].partition(" Scoped allocation with size")[0]
        shape = label[len(stack[1]) :].partition(" ")[0]
        entry = {"XLA label": label, "Operator": label, "Shape": shape, "Allocation type": "scoped"}
        return (_op(entry, requested, space),)
    return ()
