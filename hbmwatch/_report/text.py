"""The report as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from hbmwatch._records.addresses import remote_address
from hbmwatch._records.buffer_table import buffer_rows
from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.memory_spaces import SPARSE_CORE_CODE
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import (
    by_kind,
    clean,
    columns,
    listed,
    memory_space_name,
    name_and_source,
    packed,
    program_point,
    ranges,
    sentence,
    without_layout,
    wrapped,
)

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.process import Process
    from hbmwatch._records.report import DeviceMemory, Finding, ReportData

_SHOWN_FINDINGS = 4
_DETAILED_FINDINGS = 2
_SHOWN_SENTENCES = 4
_LONGEST_COMMAND = 230
_PLUGINS = {"tpu": "libtpu", "gpu": "plugin"}
_NOT_IN_MODULE_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")
OVER_LIMIT = "{} over the limit"
# What a verdict says where arguments or outputs do not fit, whatever the program does.
TO_FIT, NARROWER = "To fit, ", "use a narrower dtype"


def headline(report: ReportData) -> str:
    """The line with which a report begins."""
    return f"hbmwatch: {one_line(report)}"


def one_line(report: ReportData) -> str:
    """What ran out of which memory, and the binding figures."""
    binding = binding_text(report)
    return f"{title(report)}{': ' if binding else ''}{binding}"


def title(report: ReportData) -> str:
    """What ran out of which memory, when and on which device, without figures."""
    message = report.message
    if not message.text:
        module = report.summary.module if report.summary is not None else report.function
        peak = f"memory peak of {clean(module or 'the program', 60)}"
        return peak if report.summary is not None else f"{peak}: unavailable"
    when = {"compile": " while compiling", "run": " at run time"}.get(message.phase or "", "")
    device = _device_name(message, report.device)
    where = f" {'for' if message.phase == 'compile' else 'on'} {device}" if device else ""
    code = f" ({clean(message.code, 20)})" if message.code else ""
    return f"{_failed_name(report)} ran out of {_space(message)}{when}{where}{code}"


def _failed_name(report: ReportData) -> str:
    """What ran out: the function or the program, with "probably" if that is a guess."""
    summary, transfer = report.summary, report.transfer
    if transfer is not None:
        size, source = format_size(transfer.size_bytes), clean(transfer.source, 60)
        copied = f"{clean(transfer.call, 40)} of {size} {clean(transfer.shape, 60)}"
        return f"{copied} at {source}" if source else copied
    module = report.message.module if summary is None else summary.module
    if summary is None or not report.program_is_guess:
        return clean(report.function or module or "the program", 60)
    probable = f"probably {clean(_module_name(summary), 60)}"
    if _is_program_of(report.function, summary.module):
        return f"{clean(report.function, 60)} ({probable})"
    return f"{clean(report.function, 60)} failed: {probable}" if report.function else probable


def _is_program_of(function: str, module: str) -> bool:
    """Whether a module has the name that JAX gives to the program of a function ("jit_step")."""
    plain = _NOT_IN_MODULE_NAMES.sub("_", function).strip("_")
    return bool(plain) and module.partition("_")[2].strip("_") == plain


def _device_name(message: OomMessage, device: DeviceMemory | None) -> str:
    """The device kind, else the platform, in capitals ("CPU")."""
    name = (device.device_kind if device else message.platform) or ""
    return name.upper() if name in ("cpu", "gpu", "tpu") else clean(name, 40)


def _space(message: OomMessage) -> str:
    if message.platform == "cpu":
        return "memory"
    if message.code == SPARSE_CORE_CODE and message.memory_space is None:
        return "SparseCore memory"
    if message.platform != "tpu" and message.memory_space in (None, "hbm"):
        return "device memory"
    return memory_space_name(message.memory_space or "hbm")


def binding_text(report: ReportData) -> str:
    """The binding figures as text."""
    return "; ".join(_binding(report))


def _binding(report: ReportData) -> list[str]:
    return [wording.format(format_size(size)) for wording, size in binding_figures(report)]


def binding_figures(report: ReportData) -> list[tuple[str, int]]:
    """The needed and the available bytes, as far as known: (wording, bytes).

    Each wording has a place for the size: ("{} over the limit", 8993440768).
    """
    message, limit = report.message, report.message.limit_bytes
    needed = needed_bytes(report)
    over = _over_limit_bytes(message, needed)
    several = report.device is not None and report.device.device_count > 1
    # At run time the program shares the device, so that its limit is not what it can get.
    named = [
        ("requested {}", message.requested_bytes),
        ("needs {} per device" if several else "needs {}", needed),
        ("{} available" if message.phase == "compile" else "limit {}", limit),
        (OVER_LIMIT, over),
        ("{} in use", message.totals.get("InUse")),
        ("{} free", message.free_bytes),
        ("largest free block {}", message.largest_free_bytes),
    ]
    return [(wording, size) for wording, size in named if size is not None]


def needed_bytes(report: ReportData) -> int | None:
    """What the program needs according to the message; exact if the message only rounds it."""
    used, summary = report.message.used_bytes, report.summary
    if used is None or summary is None:
        return used
    resolution = report.message.resolution_bytes.get("used_bytes", 0)
    exact = (summary.total_allocation_bytes, summary.peak_bytes)
    return next((size for size in exact if abs(size - used) <= resolution), used)


def _over_limit_bytes(message: OomMessage, needed: int | None) -> int | None:
    """By how much the program exceeds the limit; exact if the message only rounds it."""
    over, limit = message.exceeded_by_bytes, message.limit_bytes
    if needed is None or limit is None:
        return over
    exact = needed - limit
    if over is not None and abs(exact - over) > sum(message.resolution_bytes.values()):
        return over
    return exact if exact > 0 else over


def report_text(report: ReportData, top: int = 10, look: Look = PLAIN) -> str:
    """The whole report, at most about 40 lines.

    Args:
        report: The report.
        top: How many rows of buffers it shows at most.
        look: How wide it is; by default below 100 columns, and plain.
    """
    lines = list(map(look.strong, wrapped(f"hbmwatch: {title(report)}", 0, look=look)))
    lines += packed(_binding(report), 2, look, "; ")
    lines += _process_line(report.process, look)
    if report.summary is not None:
        lines += _program_lines(report, report.summary, top, look)
    elif report.message.ops:
        # A log can begin in the middle of the list.
        lines += ["  Buffers that the error message lists"]
        lines += buffer_rows([(1, op) for op in report.message.ops], top, look)
    lines += finding_lines(report, look)
    lines += _sentences("note", report.notes, look)
    lines += _sentences("unavailable", report.missing, look)
    command = profile_command(report)
    if command and report.summary is not None:
        lines += _copyable("profile", command, look)
        lines += [f"    (Memory Viewer, module {clean(_module_name(report.summary), 70)})"]
    if report.run is not None:
        lines += _copyable("report", f"hbmwatch show {shlex.quote(report.run)}", look)
    if report.local_run is not None:
        lines += _copyable("local copy", report.local_run, look)
    lines += wrapped(sentence(_versions(report)), look=look)
    lines += _links(report.message)
    lines += _plan_lines(report, look)
    return "\n".join(map(look.marked, lines))


def _copyable(label: str, text: str, look: Look) -> list[str]:
    """A command or a path, which is never broken: on a line of its own where it is long."""
    shown = clean(text, _LONGEST_COMMAND)
    line = f"  {label}: {shown}"
    return [line] if columns(line) <= look.width else [f"  {label}:", f"    {shown}"]


def _plan_lines(report: ReportData, look: Look) -> list[str]:
    """What a plan found; without one, how to ask for it."""
    if report.plan:
        return wrapped(f"plan: {sentence(report.plan)}", look=look)
    is_program = report.message.phase == "compile" and report.message.memory_space == "hbm"
    is_hopeless = TO_FIT in report.verdict and NARROWER not in report.verdict
    if not is_program or not report.function or is_hopeless:
        return []
    name = clean(report.function, 40)
    advice = f"To search for a change that makes the step fit: hbmwatch.plan({name}, ...)"
    return wrapped(advice, look=look)


def _process_line(process: Process | None, look: Look) -> list[str]:
    """Which process of a job of several failed, and when."""
    if process is None or process.count == 1:
        return []
    devices = ranges(process.device_ids)
    parts = [
        f"process {process.index} of {process.count}",
        f"on {process.host}" if process.host else "",
        f"slice {process.slice_index}" if process.slice_index is not None else "",
        f"device{'' if len(process.device_ids) == 1 else 's'} {devices}" if devices else "",
        f"at {process.time}" if process.time else "",
    ]
    return wrapped(sentence(", ".join(filter(None, parts))), look=look)


def profile_command(report: ReportData) -> str:
    """The command that shows the profile in XProf; "" if there is none that it opens.

    XProf 2.24 opens folders and gs:// only: of another address, the copy on the host.
    """
    logdir = report.logdir
    if logdir is None:
        return ""
    if remote_address(logdir) is not None and not logdir.startswith("gs://"):
        if report.local_run is None:
            return ""
        logdir = str(PurePath(report.local_run).parents[2])
    return f"xprof --logdir={shlex.quote(logdir)} --port=6006"


def _module_name(summary: PeakSummary) -> str:
    number = "" if summary.program_id is None else f"({summary.program_id})"
    return f"{summary.module}{number}"


def _program_lines(report: ReportData, summary: PeakSummary, top: int, look: Look) -> list[str]:
    devices = report.device.device_count if report.device else 1
    per = f" on each of {devices} devices" if devices > 1 else ""
    head = f"Peak of {clean(summary.module, 50)}: {format_size(summary.peak_bytes)}{per}"
    groups = summary.grouped()
    arguments = [(count, op) for count, op in groups if op.path]
    shown, others = arguments[:3], arguments[3:]
    named = [f"{name_and_source(op, n > 1)[0]} {without_layout(op.shape)}" for n, op in shown]
    named += [f"{sum(count for count, _ in others)} more"] if others else []
    point = program_point(summary.peak_position, len(summary.heap_bytes))
    lines = wrapped(f"{head}{point}", look=look)
    lines += packed(by_kind(summary.ops), 4, look)
    lines += wrapped(sentence(f"arguments: {', '.join(named)}"), look=look) if arguments else []
    space = (
        "" if summary.memory_space == "hbm" else f" in {memory_space_name(summary.memory_space)}"
    )
    return [*lines, f"  Largest buffers at the peak{space}", *buffer_rows(groups, top, look)]


def finding_lines(report: ReportData, look: Look = PLAIN) -> list[str]:
    """The first findings and the verdict: what to try first."""
    findings, verdict, summary = report.findings, report.verdict, report.summary
    guess = ""
    if report.program_is_guess and summary is not None:
        guess = f", if it was {clean(_module_name(summary), 60)} that ran out"
    lines = wrapped(f"What to try first{guess}", look=look) if findings else []
    for number, finding in enumerate(findings[:_SHOWN_FINDINGS], start=1):
        saves = finding.saves_bytes
        freed = f" (frees up to {format_size(saves)})" if saves else ""
        titled = wrapped(f"{number}. {sentence(finding.title)}{freed}", indent=4, look=look)
        lines += map(look.strong, titled)
        if number > _DETAILED_FINDINGS:
            continue
        lines += wrapped(_ended(sentence(finding.evidence)), indent=7, hang=0, look=look)
        lines += wrapped(_ended(sentence(finding.remedy)), indent=7, hang=0, look=look)
    lines += wrapped(sentence(verdict), indent=4, look=look) if findings else []
    trials = _trials(findings[:_SHOWN_FINDINGS], clean(report.function or "step", 40))
    return lines + (wrapped(f"To measure {trials}.", indent=4, look=look) if trials else [])


def _trials(findings: Sequence[Finding], step: str) -> str:
    """How `verify` can try each finding that was not measured yet, by the findings' numbers."""
    numbers: dict[str, list[str]] = {}
    for number, finding in enumerate(findings, start=1):
        if finding.certainty != "measured":
            how = f'change="{finding.change}"' if finding.change else "variant=your_changed_step"
            numbers.setdefault(clean(how), []).append(str(number))
    return "; ".join(
        f"finding{'s' * (len(which) > 1)} {listed(which)}: hbmwatch.verify({step}, ..., {how})"
        for how, which in numbers.items()
    )


def _sentences(label: str, sentences: Sequence[str], look: Look) -> list[str]:
    lines: list[str] = []
    for text in sentences[:_SHOWN_SENTENCES]:
        lines += wrapped(f"{label}: {sentence(text)}", look=look)
    return lines


def _ended(text: str) -> str:
    """A sentence with a full stop at its end."""
    return text if not text or text[-1] in ".!?" else f"{text}."


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
    return [f"  https://openxla.org/xla/errors/error_{clean(code[1:], 20)}"] if code else []


def _is_hbm(message: OomMessage) -> bool:
    return message.phase == "compile" and message.memory_space == "hbm"
