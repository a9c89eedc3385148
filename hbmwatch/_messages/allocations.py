"""The allocations that a message lists or names, as PeakOps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hbmwatch._messages.tpu import SCOPED_ALLOCATION
from hbmwatch._records.peak_op import Kind, PeakOp
from hbmwatch._records.sizes import SIZE, read_size

_KINDS: tuple[tuple[str, Kind], ...] = (
    ("temp", "temporary"),
    ("scoped", "temporary"),
    ("param", "parameter"),
    ("arg", "parameter"),
    ("constant", "constant"),
    ("output", "output"),
)
_END_OF_ENTRY = " ====="
# An entry without a label: every list gives each entry one, unless the text is cut.
_NO_NAME = "(cut off)"

# What XLA:TPU calls memory that no instruction makes; it is named in the label or in the tag.
_OF_NO_OP = re.compile("register allocator spill slots|scratch operand")

# re compiles these when they are first used: most texts need none of them.
_TPU_ENTRY = r"(?<!\S)\d{1,4}\. (?=Size: )"
_TPU_FIELD = (
    r"(Size|Operator|Shape|Unpadded size|Extra memory due to padding|XLA label|Tag"
    r"|Allocation type): "
)
_GPU_ENTRY = rf"Buffer \d{{1,4}}: Size: ({SIZE})"
_GPU_FIELD = r"(Operator|XLA Label|Shape|Entry Parameter Subshape): "
# Where the text is cut, the next quote is another one's.
_ATTRIBUTE = r'(op_name|source_file)="([^"]*)(?<! )"(?!\S)|source_line=(\d{1,9})'
_LABEL = r"%?([\w.-]+) = "
_OPCODE = r"(?:^|\s)([a-z][a-z0-9-]*)\("
_STACK_OP = r"while allocating on stack for (%[\w.-]+ = )"
_BUFFER = (
    r"\[shape = '([^']{0,2000})', space=[^']{0,200}?(scoped, )?tag = '([^']{0,4000})'\] ::"
    r" ([\w.-]+)?"
)
_OUTPUT = r"output of ([\w.-]+)@\{([\d,]*)\}"


def add_ops(fields: dict[str, Any], ops: Iterable[PeakOp]) -> None:
    """Add allocations to an OomMessage's fields, the largest first."""
    if by_size := tuple(sorted(ops, key=lambda op: -op.size_bytes)):
        fields["ops"] = by_size


def tpu_allocations(text: str, memory_space: str) -> Iterator[PeakOp]:
    """XLA:TPU's list: "1. Size: 4.00G Operator: op_name=... Shape: ... XLA label: ..."."""
    for _, entry in _entries(text, _TPU_ENTRY, _TPU_FIELD):
        size = read_size(entry["Size"].partition(" ")[0])
        if size:
            yield _tpu_op(entry, size.size_bytes, memory_space)


def gpu_allocations(text: str) -> Iterator[PeakOp]:
    """XLA:GPU's list: "Buffer 1: Size: 6.00MiB Operator: ... XLA Label: fusion Shape: ..."."""
    for start, entry in _entries(text, _GPU_ENTRY, _GPU_FIELD):
        size = read_size(start[1])
        if size:
            yield _gpu_op(entry, size.size_bytes)


def _entries(text: str, start: str, field: str) -> Iterator[tuple[re.Match[str], dict[str, str]]]:
    """The start of each entry of a list, and its fields by name."""
    matches = list(re.finditer(start, text))
    ends = [*(match.start() for match in matches), len(text)][1:]
    for match, end in zip(matches, ends, strict=True):
        parts = re.split(field, text[match.end() : end].partition(_END_OF_ENTRY)[0])[1:]
        fields = zip(parts[::2], parts[1::2], strict=True)
        yield match, {name: value.strip() for name, value in fields}


def _tpu_op(entry: dict[str, str], size_bytes: int, memory_space: str) -> PeakOp:
    """An entry of XLA:TPU's list; its label is the instruction's text: "%fusion.1 = ..."."""
    label = entry.get("XLA label", "")
    name = re.match(_LABEL, label)
    opcode = re.search(_OPCODE, label[name.end() :]) if name else None
    kind = entry.get("Allocation type", "").lower()
    op_name, frame = _operator(entry)
    of_no_op = _OF_NO_OP.match(label or entry.get("Tag", ""))
    words = of_no_op[0] if of_no_op else label.partition(" ")[0].lstrip("%")
    return PeakOp(
        instruction=name[1] if name else words or _NO_NAME,
        opcode=opcode[1] if opcode else "",
        op_name=op_name,
        shape=entry.get("Shape", ""),
        size_bytes=size_bytes,
        unpadded_bytes=_unpadded_bytes(entry, size_bytes),
        kind=next((xla_kind for word, xla_kind in _KINDS if word in kind), ""),
        memory_space=memory_space,
        source=frame.rpartition("/")[2],
        stack=(frame,) if frame else (),
    )


def _gpu_op(entry: dict[str, str], size_bytes: int) -> PeakOp:
    """An entry of XLA:GPU's list; its label is the instruction's opcode."""
    subshape = entry.get("Entry Parameter Subshape")
    label = "parameter" if subshape is not None else entry.get("XLA Label", "")
    op_name, frame = _operator(entry)
    return PeakOp(
        instruction=label or _NO_NAME,
        opcode=label,
        op_name=op_name,
        shape=subshape or entry.get("Shape", ""),
        size_bytes=size_bytes,
        unpadded_bytes=size_bytes,
        kind="parameter" if subshape is not None else "",
        source=frame.rpartition("/")[2],
        stack=(frame,) if frame else (),
    )


def _operator(entry: dict[str, str]) -> tuple[str, str]:
    """The op_name of an entry, and its frame as "file:line"."""
    matches = re.finditer(_ATTRIBUTE, entry.get("Operator", ""))
    attributes = {match[1] or "line": match[2] or match[3] for match in matches}
    path, line = attributes.get("source_file") or "", attributes.get("line")
    return attributes.get("op_name") or "", f"{path}:{line}" if path and line else path


def _unpadded_bytes(entry: dict[str, str], size_bytes: int) -> int:
    """The stated unpadded size; the size itself where the entry states no padding."""
    stated = read_size(entry.get("Unpadded size", "").partition(" ")[0])
    if stated:
        return stated.size_bytes
    padding = read_size(entry.get("Extra memory due to padding", "").partition(" ")[0])
    return max(size_bytes - padding.size_bytes, 0) if padding else size_bytes


def failed_allocation(
    text: str, requested_bytes: int | None, memory_space: str
) -> tuple[PeakOp, ...]:
    """The one allocation that failed, where XLA:TPU names it and its size."""
    if requested_bytes is None:
        return ()
    buffer = re.search(_BUFFER, text)
    if buffer:
        shape, scoped, tag, name = buffer.groups()
        output = re.match(_OUTPUT, tag)
        if output:
            name = output[1] + (f"{{{output[2]}}}" if output[2] else "")
        if not name and not text[buffer.end() :].strip():
            name = _NO_NAME
        kind: Kind = "temporary" if scoped else ""
        size = requested_bytes
        return (PeakOp(name or "", "", "", shape, size, size, kind, memory_space),)
    stack = re.search(_STACK_OP, text)
    if stack:
        # The shape is that of the instruction's result, which is not on the stack.
        label = text[stack.start(1) :].partition(f" {SCOPED_ALLOCATION}")[0]
        entry = {"XLA label": label, "Operator": label, "Allocation type": "scoped"}
        return (_tpu_op(entry, requested_bytes, memory_space),)
    return ()
