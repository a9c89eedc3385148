"""How a report reads: as text, as JSON-able values, as scalars."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hbmwatch._sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records import (
        DeviceMemory,
        Finding,
        OomMessage,
        OomReport,
        PeakOp,
        PeakSummary,
    )

SCHEMA = 1
_WIDTH = 99
_SHOWN_FINDINGS = 4
_DETAILED_FINDINGS = 2
_SHOWN_SENTENCES = 4
_SPACES = {"hbm": "HBM", "vmem": "VMEM", "smem": "SMEM", "cmem": "CMEM", "host": "host memory"}
_KINDS = {"parameter": "argument"}
_PLURALS = {
    "parameter": "arguments",
    "output": "outputs",
    "temporary": "temporaries",
    "constant": "constants",
    "thread-local": "thread-local",
    "": "other",
}
_PLUGINS = {"tpu": "libtpu", "gpu": "plugin"}
_OUTER_JIT = re.compile(r"^jit\([^()/]*\)/(?:jit\(main\)/)?")
_NUMBER = re.compile(r"\d+")
_SUBSCRIPT = re.compile(r"""\[['"]?([^\[\]'"]*)['"]?\]""")
# MLflow takes letters, digits and "_-./ :", 250 of them; TensorBoard not all of these.
_NOT_IN_METRICS = re.compile(r"[^A-Za-z0-9_./-]+")
_METRIC_LENGTH, _PATH_LENGTH = 240, 180
_LAYOUT = re.compile(r"\{[^{}]*\}")


# --- text -----------------------------------------------------------------------------------------


def clean(text: str, width: int = _WIDTH) -> str:
    """Foreign text made harmless and short: no control, escape or bidirectional characters."""
    cut = text if len(text) <= 2 * width else text[:width] + text[-width:]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
    if len(shown) <= width:
        return shown
    head = (width - 1) // 3
    return f"{shown[:head]}\N{HORIZONTAL ELLIPSIS}{shown[-(width - 1 - head):]}"


def headline(report: OomReport) -> str:
    """One line: what ran out of which memory, and the figures that bind."""
    binding = _figures(report.message, report.device)
    return f"hbmwatch: {what(report)}{': ' if binding else ''}{binding}"


def what(report: OomReport) -> str:
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
    return _SPACES.get(message.memory_space or "hbm", clean(str(message.memory_space), 20))


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


def summary_text(summary: PeakSummary) -> str:
    """The peak-op summary as a table."""
    module = f"{clean(summary.module, 60)}"
    space = _SPACES.get(summary.memory_space, summary.memory_space)
    head = f"{module}: {format_size(summary.peak_bytes)} of {space} at the peak{_point(summary)}"
    kinds = _packed(_by_kind(summary), indent=2)
    return "\n".join([head, *kinds, *_buffer_rows(summary, summary.top)])


def report_text(report: OomReport) -> str:
    """The whole report, below 100 columns and at most about 40 lines."""
    lines = [f"hbmwatch: {what(report)}"]
    binding = _figures(report.message, report.device)
    lines += [f"  {binding}"] if binding else []
    if report.summary is not None:
        lines += _program_lines(report, report.summary)
    elif report.message.ops:
        lines += ["  largest buffers, by the message"]
        lines += _rows([(1, op) for op in report.message.ops], report.top)
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


def _point(summary: PeakSummary) -> str:
    if summary.peak_position is None:
        return ""
    return f" (program point {summary.peak_position} of {len(summary.heap_bytes)})"


def _program_lines(report: OomReport, summary: PeakSummary) -> list[str]:
    devices = report.device.device_count if report.device else 1
    per = f", on each of {devices} devices" if devices > 1 else ""
    head = f"  {format_size(summary.peak_bytes)} at the peak of {clean(summary.module, 50)}{per}"
    arguments = [(count, op) for count, op in summary.grouped() if op.path]
    named = [f"{_where(op, count > 1)[0]} {_shape(op)}" for count, op in arguments[:3]]
    more = sum(count for count, _ in arguments[3:])
    named += [f"{more} more"] if more else []
    lines = [f"{head}{_point(summary)}:", *_packed(_by_kind(summary), indent=4)]
    lines += _wrapped(clean(f"arguments: {', '.join(named)}", 2 * _WIDTH)) if arguments else []
    space = "" if summary.memory_space == "hbm" else f" in {summary.memory_space}"
    return [*lines, f"  largest buffers at the peak{space}", *_buffer_rows(summary, report.top)]


def _packed(items: Iterable[str], indent: int) -> list[str]:
    """Items side by side, on as few lines as hold them whole."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= _WIDTH:
            lines[-1] += f"   {item}"
        else:
            lines.append(" " * indent + item)
    return lines


def _by_kind(summary: PeakSummary) -> list[str]:
    """What is live at the peak, by allocation type, and how much of it is padding."""
    totals: dict[str, int] = {}
    for op in summary.ops:
        name = _PLURALS[op.kind] if op.instruction else "small buffers"
        totals[name] = totals.get(name, 0) + op.size_bytes
    totals = dict(sorted(totals.items(), key=lambda item: -item[1]))
    totals["padding"] = sum(op.padding_bytes for op in summary.ops if op.instruction)
    return [f"{name} {format_size(total)}" for name, total in totals.items()]


def _buffer_rows(summary: PeakSummary, top: int) -> list[str]:
    return _rows(summary.grouped(), top)


def _rows(groups: Sequence[tuple[int, PeakOp]], top: int) -> list[str]:
    """One line for each group of equal buffers, in columns."""
    shown = groups[:top]
    counts = [f"{count} x" if count > 1 else "" for count, _ in shown]
    cells = [
        (
            count,
            format_size(op.size_bytes),
            clean(_shape(op), 26),
            _KINDS.get(op.kind, op.kind),
            *_where(op, number > 1),
        )
        for count, (number, op) in zip(counts, shown, strict=True)
    ]
    lines = [f"    {line}" for line in _columns(cells, (0, 1), 4, _WIDTH - 4)]
    rest = groups[top:]
    if rest:
        size = format_size(sum(count * op.size_bytes for count, op in rest))
        lines += [f"    and {sum(count for count, _ in rest)} more, {size} together"]
    return lines


def _shape(op: PeakOp) -> str:
    """The shape without its layout."""
    return _LAYOUT.sub("", op.shape)


def _where(op: PeakOp, several: bool) -> tuple[str, str]:
    """What made the buffer, and on which line; several arguments differ in their numbers."""
    if not op.instruction:
        return "all buffers below 16 KiB", ""
    path = _NUMBER.sub("*", op.path) if op.path and several else op.path
    name = path or _OUTER_JIT.sub("", op.op_name) or op.instruction
    padded = f" [{op.expansion:.1f}x padded]" if op.expansion >= 1.2 else ""
    return clean(name, 34 - len(padded)) + padded, clean(op.source, 24)


def _columns(
    cells: Sequence[tuple[str, ...]], right: tuple[int, ...], elastic: int, most: int
) -> list[str]:
    """Rows of text in aligned columns.

    Args:
        cells: The rows, of equal length.
        right: The columns that end flush.
        elastic: The column that is cut where a row would be too long.
        most: How long a row may be.
    """
    if not cells:
        return []
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    excess = sum(widths) + 2 * (sum(map(bool, widths)) - 1) - most
    widths[elastic] = min(widths[elastic], max(widths[elastic] - excess, 8))
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if n in right else clean(cell, width).ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines = ["  first things to try"] if findings else []
    for number, finding in enumerate(findings[:_SHOWN_FINDINGS], start=1):
        saves = finding.saves_bytes
        freed = f" (frees up to {format_size(saves)})" if saves else ""
        lines += _wrapped(f"{number}. {clean(finding.title, 2 * _WIDTH)}{freed}", indent=4)
        if number > _DETAILED_FINDINGS:
            continue
        lines += _wrapped(_ended(clean(finding.evidence, 3 * _WIDTH)), indent=7, hang=0)
        lines += _wrapped(_ended(clean(finding.remedy, 3 * _WIDTH)), indent=7, hang=0)
    return lines


def _sentences(label: str, sentences: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for sentence in sentences[:_SHOWN_SENTENCES]:
        lines += _wrapped(f"{label}: {clean(sentence, 3 * _WIDTH)}")
    return lines


def _ended(text: str) -> str:
    """A sentence with a full stop at its end."""
    return text if not text or text[-1] in ".!?" else f"{text}."


def _wrapped(text: str, indent: int = 2, hang: int = 3, whole_words: bool = False) -> list[str]:
    """Text broken at spaces; with `whole_words` only there, so that a path can be copied."""
    import textwrap

    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=not whole_words,
        break_on_hyphens=False,
    )


def _versions(report: OomReport) -> str:
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


# --- values ---------------------------------------------------------------------------------------


def report_dict(report: OomReport) -> dict[str, Any]:
    """The report as JSON-able values, under a schema version."""
    fields: dict[str, Any] = plain(report)
    return {"schema": SCHEMA, **fields}


def plain(value: Any) -> Any:
    """A record, or what is in one, as dicts, lists, texts and numbers."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def report_scalars(report: OomReport) -> dict[str, int | float]:
    """The report as flat name -> number; what is not known is left out.

    Names are of letters, digits and "_-./", as every metrics logger takes them.
    """
    named: dict[str, int | float | None] = {}
    named |= _numbers("message", report.message)
    named |= _numbers("peak", report.summary)
    named |= _numbers("device", report.device)
    named |= {f"breakdown/{name}_bytes": size for name, size in report.breakdown.items()}
    for grouping, sizes in report.rollup.items():
        for name, size in sizes.items():
            metric = f"rollup/{grouping}/{_metric(name)}_bytes"
            named[metric] = size + (named.get(metric) or 0)
    for finding in report.findings:
        named.setdefault(f"finding/{finding.slug}/saves_bytes", finding.saves_bytes)
    known = ((name, number) for name, number in named.items() if number is not None)
    return {f"hbm/{_NOT_IN_METRICS.sub('_', name)[:_METRIC_LENGTH]}": n for name, n in known}


def _metric(name: str) -> str:
    """A role or a path as every metrics logger takes it: "params['w'][0]" is "params.w.0"."""
    plain_name = _NOT_IN_METRICS.sub("_", _SUBSCRIPT.sub(r".\1", name))
    return plain_name.strip("_")[:_PATH_LENGTH] or "other"


def _numbers(prefix: str, record: Any) -> dict[str, int | float | None]:
    """The sizes among a record's fields."""
    names: Iterable[str] = (f.name for f in dataclasses.fields(record)) if record else ()
    values = {name: getattr(record, name) for name in names if name.endswith("_bytes")}
    return {f"{prefix}/{n}": v for n, v in values.items() if isinstance(v, (int, float))}
