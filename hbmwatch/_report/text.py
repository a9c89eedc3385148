"""The report as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import (
    WIDTH,
    buffer_rows,
    by_kind,
    clean,
    made_by,
    memory_space_name,
    packed,
    shape_text,
)

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.report import DeviceMemory, Finding, ReportData

_SHOWN_FINDINGS = 4
_DETAILED_FINDINGS = 2
_SHOWN_SENTENCES = 4
_PLUGINS = {"tpu": "libtpu", "gpu": "plugin"}


def headline(report: ReportData) -> str:
    """One line: what ran out of which memory, and the figures that bind."""
    binding = _figures(report.message, report.device)
    return f"hbmwatch: {what(report)}{': ' if binding else ''}{binding}"


def what(report: ReportData) -> str:
    """What ran out of which memory, when and on what, without figures."""
    message = report.message
    if not message.text and report.summary is not None:
        return f"the memory peak of {clean(report.summary.module, 60)}"
    name = report.function or (report.summary.module if report.summary else message.module)
    when = {"compile": " while compiling", "run": " at run time"}.get(message.phase or "", "")
    kind = report.device.device_kind if report.device else (message.platform or "").upper()
    where = f" {'for' if message.phase == 'compile' else 'on'} {clean(kind, 40)}" if kind else ""
    code = f" ({message.code})" if message.code else ""
    return f"{clean(name or 'the program', 60)} ran out of {_space(message)}{when}{where}{code}"


def _space(message: OomMessage) -> str:
    if message.platform == "cpu":
        return "memory"
    if message.platform == "gpu" and message.memory_space in (None, "hbm"):
        return "device memory"
    return memory_space_name(message.memory_space or "hbm")


def _figures(message: OomMessage, device: DeviceMemory | None) -> str:
    """The figures as text, those of a partitioned program as such of one device."""
    per = " a device" if device and device.device_count > 1 else ""
    tails = {"needs": per}
    named = figures(message)
    return ", ".join(f"{name} {format_size(n)}{tails.get(name, '')}" for name, n in named)


def figures(message: OomMessage) -> list[tuple[str, int]]:
    """What was asked, what was there, and by how much it did not fit, in bytes, as far as known."""
    limit = message.limit_bytes
    over = message.exceeded_by_bytes
    if over is None and limit is not None and message.used_bytes is not None:
        over = message.used_bytes - limit
    named = [
        ("asked for", message.requested_bytes),
        ("needs", message.used_bytes),
        ("has", limit),
        ("over by", over),
        ("free", message.free_bytes),
        ("largest free block", message.largest_free_bytes),
    ]
    return [(name, size) for name, size in named if size is not None]


def report_text(report: ReportData, top: int = 10) -> str:
    """The whole report, below 100 columns and at most about 40 lines."""
    lines = [f"hbmwatch: {what(report)}"]
    binding = _figures(report.message, report.device)
    lines += [f"  {binding}"] if binding else []
    if report.summary is not None:
        lines += _program_lines(report, report.summary, top)
    elif report.message.ops:
        lines += ["  largest buffers, by the message"]
        lines += buffer_rows([(1, op) for op in report.message.ops], top)
    lines += _finding_lines(report.findings)
    lines += _sentences("note", report.notes)
    lines += _sentences("not known", report.missing)
    if report.logdir is not None and report.summary is not None:
        folder = clean(shlex.quote(report.logdir), 200)
        command = f"profile: xprof --logdir={folder} --port=6006"
        lines += _wrapped(command, whole_words=True)
        lines += [f"    (Memory Viewer, module {clean(_module_name(report.summary), 70)})"]
    lines += _wrapped(clean(_versions(report), 300))
    lines += _links(report.message)
    return "\n".join(lines)


def _module_name(summary: PeakSummary) -> str:
    number = "" if summary.program_id is None else f"({summary.program_id})"
    return f"{summary.module}{number}"


def _program_lines(report: ReportData, summary: PeakSummary, top: int) -> list[str]:
    devices = report.device.device_count if report.device else 1
    per = f", on each of {devices} devices" if devices > 1 else ""
    head = f"  {format_size(summary.peak_bytes)} at the peak of {clean(summary.module, 50)}{per}"
    arguments = [(count, op) for count, op in summary.grouped() if op.path]
    named = [f"{made_by(op, count > 1)[0]} {shape_text(op)}" for count, op in arguments[:3]]
    more = sum(count for count, _ in arguments[3:])
    named += [f"{more} more"] if more else []
    lines = [f"{head}{summary.point}:", *packed(by_kind(summary.ops), indent=4)]
    lines += _wrapped(clean(f"arguments: {', '.join(named)}", 2 * WIDTH)) if arguments else []
    space = "" if summary.memory_space == "hbm" else f" in {summary.memory_space}"
    return [*lines, f"  largest buffers at the peak{space}", *buffer_rows(summary.grouped(), top)]


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines = ["  first things to try"] if findings else []
    for number, finding in enumerate(findings[:_SHOWN_FINDINGS], start=1):
        saves = finding.saves_bytes
        freed = f" (frees up to {format_size(saves)})" if saves else ""
        lines += _wrapped(f"{number}. {clean(finding.title, 2 * WIDTH)}{freed}", indent=4)
        if number > _DETAILED_FINDINGS:
            continue
        lines += _wrapped(_ended(clean(finding.evidence, 3 * WIDTH)), indent=7, hang=0)
        lines += _wrapped(_ended(clean(finding.remedy, 3 * WIDTH)), indent=7, hang=0)
    return lines


def _sentences(label: str, sentences: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for sentence in sentences[:_SHOWN_SENTENCES]:
        lines += _wrapped(f"{label}: {clean(sentence, 3 * WIDTH)}")
    return lines


def _ended(text: str) -> str:
    """A sentence with a full stop at its end."""
    return text if not text or text[-1] in ".!?" else f"{text}."


def _wrapped(text: str, indent: int = 2, hang: int = 3, whole_words: bool = False) -> list[str]:
    """Text broken at spaces; with `whole_words` only there, so that a path can be copied."""
    import textwrap

    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=not whole_words,
        break_on_hyphens=False,
    )


def _versions(report: ReportData) -> str:
    """The versions that matter for a failure on this platform."""
    plugin = _PLUGINS.get(report.message.platform or "", "")
    named = [
        f"{name} {version}"
        for name, version in report.versions.items()
        if name in ("hbmwatch", "jax", "jaxlib") or (plugin and plugin in name)
    ]
    return ", ".join(named)


def _links(message: OomMessage) -> list[str]:
    """XLA's page on the error."""
    code = message.code or ("E1000" if message.platform == "tpu" and _is_hbm(message) else None)
    return [f"  https://openxla.org/xla/errors/error_{code[1:]}"] if code else []


def _is_hbm(message: OomMessage) -> bool:
    return message.phase == "compile" and message.memory_space == "hbm"
