"""What the page's script draws: the report as JSON-able values, its buffers in columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hbmwatch._records.peak import MOST_OTHER_OPS
from hbmwatch._records.roles import ROLES, role_of
from hbmwatch._records.text import clean
from hbmwatch._report.json import fingerprint, report_dict
from hbmwatch._report.text import (
    OVER_LIMIT,
    binding_figures,
    needed_bytes,
    profile_command,
    title,
)

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp
    from hbmwatch._records.report import ReportData

_NUMBERS = ("size_bytes", "unpadded_bytes", "start", "end")
_TEXTS = {
    "op_name": "shown_name",
    "instruction": "instruction",
    "opcode": "opcode",
    "shape": "shape",
    "kind": "kind",
    "source": "shown_source",
}
_LONGEST_TEXT = 20_000


def page_data(report: ReportData, most: int | None = None) -> dict[str, Any]:
    """`to_dict()` with the buffers in columns, and the words that the text report has, too.

    Args:
        report: The report.
        most: The number of buffers that it holds at most, the largest ones; None for all.
    """
    summary, message = report.summary, report.message
    without_ops = dataclasses.replace(
        report,
        message=dataclasses.replace(message, ops=()),
        summary=None if summary is None else dataclasses.replace(summary, ops=(), other_ops=None),
    )
    words = {
        "title": _title(report),
        "figures": _figures(report),
        "needed_bytes": needed_bytes(report),
        "command": profile_command(report) or None,
        "fingerprint": fingerprint(report),
    }
    ops = message.ops if summary is None else summary.ops
    others = None if summary is None else summary.other_ops
    data: dict[str, Any] = safe({**report_dict(without_ops), "page": words})
    return {**data, "buffers": _buffers(ops, others, most)}


def safe(value: Any) -> Any:
    """A value whose texts have no control, escape and bidirectional characters."""
    if isinstance(value, str):
        lines = value[:_LONGEST_TEXT].splitlines()
        return "\n".join(line if line.isprintable() else clean(line, len(line)) for line in lines)
    if isinstance(value, dict):
        return {safe(key): safe(item) for key, item in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return [safe(item) for item in value]
    return value


def _title(report: ReportData) -> str:
    """The title; the name of a function stays as it is."""
    text = title(report)
    return text if report.message.text else text[0].upper() + text[1:]


def _figures(report: ReportData) -> list[dict[str, Any]]:
    """The binding figures, and the peak if the error does not say what the program needs."""
    named = binding_figures(report)
    if report.summary is not None and report.message.used_bytes is None:
        named = [*named, ("{} at the peak", report.summary.peak_bytes)]
    return [
        {
            "label": " ".join(wording.format("").split()),
            "bytes": size,
            "over": wording == OVER_LIMIT,
        }
        for wording, size in named
    ]


def _buffers(
    ops: Sequence[PeakOp], others: Sequence[PeakOp] | None, most: int | None
) -> dict[str, Any]:
    """The buffers at the peak, then others, with the totals at the peak by role."""
    sizes: dict[str, int] = {}
    for op in ops:
        role = role_of(op)
        sizes[role] = sizes.get(role, 0) + op.size_bytes
    at_peak = [ops[i] for i in _largest(ops, most)]
    left = None if most is None else most - len(at_peak)
    later = [] if others is None else [others[i] for i in _largest(others, left)]
    is_complete = others is not None and len(others) < MOST_OTHER_OPS
    kept = [*at_peak, *later]
    op_roles = [role_of(op) for op in kept]
    order = {role: n for n, role in enumerate(ROLES)}
    roles = sorted({*sizes, *op_roles}, key=lambda role: order.get(role, len(order)))
    numbers = {role: n for n, role in enumerate(roles)}
    shown = [{"name": r, "meaning": ROLES.get(r, ""), "bytes": sizes.get(r, 0)} for r in roles]
    return {
        **_columns(kept),
        "role": [numbers[role] for role in op_roles],
        "roles": safe(shown),
        "peak_count": len(at_peak),
        "complete": is_complete and len(kept) == len(ops) + len(others or ()),
        "op_count": len(ops),
        "op_bytes": sum(sizes.values()),
    }


def _largest(ops: Sequence[PeakOp], most: int | None) -> Sequence[int]:
    """The numbers of the largest buffers, in program order."""
    numbers = range(len(ops))
    if most is None or len(ops) <= most:
        return numbers
    return sorted(sorted(numbers, key=lambda i: -ops[i].size_bytes)[: max(0, most)])


def _frames(op: PeakOp) -> tuple[str, ...]:
    """The stack of a buffer, each frame with its function where that is known."""
    functions = (*op.functions, *("",) * len(op.stack))
    named = zip(op.stack, functions)
    return tuple(f"{line}, in {function}" if function else line for line, function in named)


def _columns(ops: Sequence[PeakOp]) -> dict[str, Any]:
    """A list for each field of the buffers; texts and stacks are numbers of `strings`, `stacks`."""
    strings: dict[str, int] = {}
    stacks: dict[tuple[str, ...], int] = {}
    columns: dict[str, Any] = {name: list(map(attrgetter(name), ops)) for name in _NUMBERS}
    for name, field in _TEXTS.items():
        texts = map(attrgetter(field), ops)
        columns[name] = [strings.setdefault(text, len(strings)) for text in texts]
    columns["stack"] = [stacks.setdefault(_frames(op), len(stacks)) for op in ops]
    columns["stacks"] = [[strings.setdefault(f, len(strings)) for f in stack] for stack in stacks]
    return {**columns, "strings": safe(list(strings))}
