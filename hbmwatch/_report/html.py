"""The report as a page: one file that needs nothing else, for a browser and for a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from hbmwatch._records.roles import ROLES, role_of
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import clean
from hbmwatch._report.json import fingerprint
from hbmwatch._report.text import figures, headline, report_text, what

if TYPE_CHECKING:
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.peak_op import PeakOp
    from hbmwatch._records.report import DeviceMemory, Finding, ReportData

_NOTEBOOK_BUFFERS = 2000
_NOTEBOOK_HEIGHT = 760
# Style sheet classes; roles that are never told apart in one program share one.
_COLORS = {
    "parameters": "params",
    "optimizer state": "optimizer",
    "parameters or optimizer state": "optimizer",
    "batch": "inputs",
    "other arguments": "arguments",
    "arguments": "arguments",
    "outputs": "outputs",
    "residuals saved for backward": "residuals",
    "recomputed by jax.checkpoint": "recomputed",
    "gradients": "gradients",
    "backward temporaries": "backward",
    "forward temporaries": "forward",
    "collectives": "collectives",
    "other temporaries": "temporaries",
    "constants": "constants",
}


def page(report: ReportData, most: int | None = None) -> str:
    """The report as a whole HTML document, which loads nothing.

    Args:
        report: The report.
        most: How many buffers it holds at most, the largest; None for all.
    """
    style, script = _asset("css"), _asset("js")
    body = [
        _head(report),
        _findings(report.findings),
        _explorer(report, most),
        _rollup(report.rollup),
        _device(report.device),
        _sentences("notes", "Good to know", report.notes),
        _sentences("missing", "Not known", report.missing),
        _text(report),
        _foot(report),
    ]
    return string.Template(_asset("html")).substitute(
        title=_e(headline(report), 300),
        policy=_policy(style, script),
        style=style,
        script=script,
        body="\n".join(part for part in body if part),
        data=_json(_data(report, most)),
    )


def notebook(report: ReportData) -> str:
    """The page in a frame of its own, for a notebook's cell; the largest buffers only."""
    document = escape(page(report, _NOTEBOOK_BUFFERS), quote=True)
    return (
        f'<iframe srcdoc="{document}" sandbox="allow-scripts" title="hbmwatch report" '
        f'style="width:100%;height:{_NOTEBOOK_HEIGHT}px;border:0"></iframe>'
    )


# --- the parts of a document ----------------------------------------------------------------------


def _asset(kind: str) -> str:
    return resources.files("hbmwatch._report").joinpath(f"page.{kind}").read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A content security policy under which nothing but our own style and script runs."""
    hashes = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for name, text in (("style", style), ("script", script))
    }
    allowed = [f"{name}-src 'sha256-{digest}'" for name, digest in hashes.items()]
    return "; ".join(["default-src 'none'", "img-src data:", *allowed])


def _json(value: object) -> str:
    """JSON that may stand inside a script element: no text in it can end that."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _safe(text: str, width: int = 20_000) -> str:
    """Foreign text without control, escape and bidirectional characters."""
    return text[:width] if text.isprintable() else clean(text, width)


def _e(text: str, width: int = 20_000) -> str:
    return escape(_safe(text, width), quote=True)


def _section(name: str, title: str, content: str, aside: str = "") -> str:
    head = f'<h2 id="h-{name}">{title}</h2>' + (f"<p>{aside}</p>" if aside else "")
    return (
        f'<section id="{name}" aria-labelledby="h-{name}"><div class="head">{head}</div>\n'
        f"{content}\n</section>"
    )


# --- what did not fit -----------------------------------------------------------------------------


def _head(report: ReportData) -> str:
    named = figures(report.message)
    if report.summary is not None and "needs" not in dict(named):
        named = [*named, ("at the peak", report.summary.peak_bytes)]
    shown = "".join(
        f'<div class="{"over" if name == "over by" else "plain"}"><dt>{_e(name)}</dt>'
        f'<dd class="number" title="{size:,} bytes">{format_size(size)}</dd></div>'
        for name, size in named
    )
    title = _e(_title(report))
    return (
        f'<header><p class="eyebrow">hbmwatch{_e(_circumstances(report))}</p><h1>{title}</h1>'
        f'<dl class="figures">{shown}</dl>{_budget(report)}</header>'
    )


def _title(report: ReportData) -> str:
    title = what(report)
    return title[0].upper() + title[1:] if not report.message.text else title


def _circumstances(report: ReportData) -> str:
    count = report.device.device_count if report.device else 1
    parts = [f"process {report.process_index}"] if report.process_index else []
    parts += [f"all sizes are of one of {count} devices"] if count > 1 else []
    return "".join(f" \N{MIDDLE DOT} {part}" for part in parts)


def _limit(report: ReportData) -> int | None:
    """What the device offers, by the message, else by what was found out elsewhere."""
    device = report.device.limit_bytes if report.device else None
    return report.message.limit_bytes or report.breakdown.get("limit") or device


def _budget(report: ReportData) -> str:
    """One bar: the peak by role, the limit across it, and what is beyond."""
    sizes = _by_role(_ops(report))
    total = max(sum(sizes.values()), report.message.used_bytes or 0)
    limit = _limit(report)
    if not sizes or not total:
        return ""
    whole = max(total, limit or 0)
    bars, at = ['<rect class="track" width="100%" height="34"/>'], 0
    for role, size in (*sizes.items(), ("", total - sum(sizes.values()))):
        if size > 0:
            bars.append(_segment(role, at, size, whole))
        at += size
    bars += _limit_marks(limit, total, whole) if limit is not None else []
    label = ", ".join(f"{role} {format_size(size)}" for role, size in sizes.items())
    return (
        f'<div class="budget{" limited" if limit is not None else ""}">'
        f'<svg role="img" aria-label="{_e(label)}">{"".join(bars)}</svg></div>{_key(sizes)}'
    )


def _key(sizes: Mapping[str, int]) -> str:
    """What the colours stand for, and how much each is."""
    whole = sum(sizes.values()) or 1
    rows = "".join(
        f'<li class="r-{_color(role)}" title="{_e(ROLES.get(role, ""))}"><span class="dot"></span>'
        f'{_e(role)} <b class="number">{format_size(size)}</b> '
        f'<span class="muted number">{100 * size / whole:.0f} %</span></li>'
        for role, size in sizes.items()
    )
    return f'<ul class="key" aria-label="At the peak, by role">{rows}</ul>'


def _segment(role: str, at: int, size: int, whole: int) -> str:
    kind = f"fill r-{_color(role)}" if role else "rest"
    what = f"{role or 'not at the peak, such as fragmentation'}: {format_size(size)}"
    return (
        f'<rect class="{kind}" x="{_percent(at, whole)}" width="{_percent(size, whole)}" '
        f'height="34"><title>{_e(what)}</title></rect>'
    )


def _limit_marks(limit: int, total: int, whole: int) -> list[str]:
    """The line of the limit with its size above, and below it what is beyond."""
    x = _percent(limit, whole)
    anchor = "end" if limit > whole / 2 else "start"
    marks = [
        f'<line class="limit" x1="{x}" x2="{x}" y1="-22" y2="34"/>',
        f'<text x="{x}" y="-10" dx="{-7 if anchor == "end" else 7}" text-anchor="{anchor}">'
        f"limit {format_size(limit)}</text>",
    ]
    if total > limit:
        beyond = "100%" if anchor == "end" else x
        marks += [
            f'<line class="brace" x1="{x}" x2="100%" y1="39" y2="39"/>',
            f'<text class="over" x="{beyond}" y="56" text-anchor="{anchor}">'
            f"{format_size(total - limit)} beyond it</text>",
        ]
    return marks


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f}%"


def _ops(report: ReportData) -> tuple[PeakOp, ...]:
    """The buffers at the peak; without a profile those that the message lists."""
    return report.message.ops if report.summary is None else report.summary.ops


def _by_role(ops: Iterable[PeakOp]) -> dict[str, int]:
    """Bytes of each role that occurs, in the order of roles."""
    sizes: dict[str, int] = {}
    for op in ops:
        role = role_of(op)
        sizes[role] = sizes.get(role, 0) + op.size_bytes
    order = {role: n for n, role in enumerate(ROLES)}
    return dict(sorted(sizes.items(), key=lambda item: order.get(item[0], len(order))))


def _color(role: str) -> str:
    return _COLORS.get(role, "other")


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    cards = "\n".join(_finding(finding) for finding in findings)
    return _section("findings", "What to try first", f'<ol class="findings">{cards}</ol>')


def _finding(finding: Finding) -> str:
    saves = ""
    if finding.saves_bytes is not None:
        size = format_size(finding.saves_bytes)
        saves = f'<p class="saves number"><span>frees up to</span> {size}</p>'
    useless = finding.will_not_help and f"<p>Will not help: {_e(finding.will_not_help)}</p>"
    link = _link(finding.link, "read on")
    return (
        f'<li class="card"><h3>{_e(finding.title)}</h3>{saves}<div class="body">'
        f'<p class="remedy">{_e(finding.remedy)}</p><p class="muted">{_e(finding.evidence)}</p>'
        f"{useless}"
        f'<p class="foot"><span>{_CERTAINTIES[finding.certainty]}</span>{link}</p></div></li>'
    )


_CERTAINTIES = {
    "measured": "measured: the changed program was compiled",
    "derived": "derived from this program\N{RIGHT SINGLE QUOTATION MARK}s figures",
    "hint": "a hint",
}


def _link(address: str, text: str) -> str:
    if not address.startswith(("https://", "http://")):
        return ""
    return f'<a href="{_e(address)}" rel="noopener noreferrer">{_e(text)}</a>'


# --- the buffers ----------------------------------------------------------------------------------


def _explorer(report: ReportData, most: int | None) -> str:
    ops = _ops(report)
    if not ops:
        return ""
    summary = report.summary
    chart = ""
    if summary is not None and len(summary.heap_bytes):
        rest = f"peak at point {summary.peak_position:,}"
        chart = (
            '<div class="card chart-card"><div class="head"><h2 id="h-explorer">'
            f'Memory over the program</h2><p id="reading" class="number" data-rest="{rest}">{rest}'
            '</p></div><div id="chart" class="chart" role="img" '
            f'aria-label="{_chart_text(summary, _limit(report))}"><svg></svg></div></div>'
        )
    left = f", the {most:,} largest of {len(ops):,}" if most and len(ops) > most else ""
    source = "at the peak" if summary is not None else "that the message lists"
    return (
        f'<section id="explorer" aria-label="The buffers {source}">{chart}'
        '<div class="split"><div class="card map" id="map"><svg role="img" aria-label="The '
        f'buffers {source} as areas, by role; the table below has them all"></svg></div>'
        '<div class="card inspector" id="inspector" aria-live="polite"></div></div>'
        f'<section id="buffers" aria-labelledby="h-buffers"><div class="head">'
        f'<h2 id="h-buffers">Buffers {source}</h2><p>{left.removeprefix(", ")}</p></div>'
        f"{_legend(ops)}{_TOOLS}{_table()}</section></section>"
        f"<noscript><pre>{_multiline(report_text(report))}</pre></noscript>"
    )


def _chart_text(summary: PeakSummary, limit: int | None) -> str:
    over = f"; the limit is {format_size(limit)}" if limit is not None else ""
    return _e(
        f"Memory over {len(summary.heap_bytes):,} program points: the peak of "
        f"{format_size(summary.peak_bytes)} is at point {summary.peak_position}{over}"
    )


def _legend(ops: Iterable[PeakOp]) -> str:
    chips = "".join(
        f'<button type="button" class="chip r-{_color(role)}" data-role="{n}" aria-pressed="true" '
        f'title="{_e(ROLES.get(role, ""))}"><span class="dot"></span>{_e(role)} '
        f'<span class="number">{format_size(size)}</span></button>'
        for n, (role, size) in enumerate(_by_role(ops).items())
    )
    return f'<div class="legend" role="group" aria-label="Roles to show">{chips}</div>'


_TOOLS = (
    '<div class="tools"><input id="filter" type="search" placeholder="Filter by name, line, shape" '
    'aria-label="Filter the buffers by name, line or shape" autocomplete="off" spellcheck="false">'
    '<label><input id="fold" type="checkbox" checked> equal buffers in one row</label>'
    '<output id="count" for="filter fold"></output></div>'
)


def _table() -> str:
    columns = (
        ("size", "c-size right", "Size"),
        ("", "c-each", "Number"),
        ("", "c-role", "Role"),
        ("", "c-name", "Made by"),
        ("", "c-shape", "Shape"),
        ("", "c-source", "Line"),
        ("padding", "c-padding right", "Padding"),
        ("lifetime", "c-life", "Lifetime"),
        ("order", "c-order right", "Order"),
    )
    heads = "".join(_column(*column) for column in columns)
    return (
        '<div class="scroll" id="scroll"><table class="buffers" id="table" role="grid" '
        'tabindex="0" aria-label="Buffers; arrow keys move, Escape lets go"><thead><tr role="row">'
        f"{heads}</tr></thead><tbody></tbody></table></div>"
    )


def _column(key: str, kind: str, title: str) -> str:
    if not key:
        return f'<th scope="col" role="columnheader" class="{kind}"><span>{title}</span></th>'
    order = "descending" if key == "size" else "none"
    return (
        f'<th scope="col" role="columnheader" class="{kind}" data-key="{key}" aria-sort="{order}">'
        f'<button type="button" class="sort">{title}</button></th>'
    )


class _Strings(dict[str, int]):
    """Texts that are written once, and named by number."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _data(report: ReportData, most: int | None) -> dict[str, Any]:
    """What the script draws from: the heap, and the buffers in columns."""
    ops, summary = _ops(report), report.summary
    if not ops:
        return {}
    roles = _by_role(ops)
    total = sum(op.size_bytes for op in ops)
    kept = _largest(ops, most)
    strings = _Strings()
    stacks: dict[tuple[str, ...], int] = {}
    buffers = _buffer_columns(kept, list(roles), strings, stacks)
    return {
        "buffers": buffers,
        "heap": [] if summary is None else summary.heap_bytes.tolist(),
        "limit": _limit(report),
        "peak": 0 if summary is None else _peak_point(summary),
        "total": total,
        "roles": [{"name": _safe(role), "color": _color(role)} for role in roles],
        "stacks": [[strings[_safe(frame)] for frame in stack] for stack in stacks],
        "strings": list(strings),
    }


def _peak_point(summary: PeakSummary) -> int:
    """The peak's place in the heap, which a stored report may say wrongly."""
    return max(0, min(summary.peak_position or 0, len(summary.heap_bytes) - 1))


def _largest(ops: tuple[PeakOp, ...], most: int | None) -> list[PeakOp]:
    """The largest buffers, in program order."""
    if most is None or len(ops) <= most:
        return list(ops)
    ranks = sorted(range(len(ops)), key=lambda i: -ops[i].size_bytes)[:most]
    return [ops[i] for i in sorted(ranks)]


def _buffer_columns(
    ops: Sequence[PeakOp], roles: list[str], strings: _Strings, stacks: dict[tuple[str, ...], int]
) -> dict[str, list[int]]:
    texts: Mapping[str, Callable[[PeakOp], str]] = {
        "name": lambda op: op.op_name,
        "instruction": lambda op: op.instruction,
        "opcode": lambda op: op.opcode,
        "shape": lambda op: op.shape,
        "kind": lambda op: op.kind,
        "source": lambda op: op.source,
    }
    numbers = {role: n for n, role in enumerate(roles)}
    columns = {name: [strings[_safe(of(op))] for op in ops] for name, of in texts.items()}
    return columns | {
        "stack": [stacks.setdefault(op.stack, len(stacks)) for op in ops],
        "role": [numbers.get(role_of(op), 0) for op in ops],
        "size": [op.size_bytes for op in ops],
        "unpadded": [op.unpadded_bytes if op.instruction else -1 for op in ops],
        "start": [-1 if op.start is None else op.start for op in ops],
        "end": [-1 if op.end is None else op.end for op in ops],
    }


# --- the rest -------------------------------------------------------------------------------------


def _rollup(rollup: Mapping[str, Mapping[str, int]]) -> str:
    """Bytes by pytree path; those by role are in the legend."""
    paths = rollup.get("path")
    if not paths:
        return ""
    return _section("paths", "By pytree path", f'<div class="card">{_bars(paths)}</div>')


def _bars(sizes: Mapping[str, int]) -> str:
    most = max(1, *sizes.values())
    rows = "".join(
        f'<tr><th scope="row">{_e(name)}</th><td class="bar"><svg viewBox="0 0 100 8" '
        'preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(0, 100 * size / most):.2f}" height="8" rx="1"/>'
        f'</svg></td><td class="right number">{format_size(size)}</td></tr>'
        for name, size in sizes.items()
    )
    return f'<table class="bars"><tbody>{rows}</tbody></table>'


def _device(device: DeviceMemory | None) -> str:
    if device is None:
        return ""
    named = {
        "may be used": device.limit_bytes,
        "in use": device.in_use_bytes,
        "most ever in use": device.peak_in_use_bytes,
        "largest free block": device.largest_free_bytes,
    }
    known = {name: size for name, size in named.items() if size is not None}
    live = {
        f"{group.count} x {group.dtype}[{','.join(map(str, group.shape))}]": group.size_bytes
        for group in device.live
    }
    parts = [_bars(known)] if known else []
    if live:
        parts += ["<h3>Arrays that the call did not pass in</h3>", _bars(live)]
    if device.deleted:
        gone = ", ".join(f"<code>{_e(path)}</code>" for path in device.deleted)
        parts += [f"<h3>Donated arguments that are gone now</h3><p>{gone}</p>"]
    if not parts:
        return ""
    content = f'<div class="card">{"".join(parts)}</div>'
    return _section("device", "On the device", content, _e(device.device_kind))


def _sentences(name: str, title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{_e(sentence)}</li>" for sentence in sentences)
    return _section(name, title, f'<ul class="notes">{items}</ul>')


def _multiline(text: str) -> str:
    return "\n".join(_e(line) for line in text.splitlines())


def _text(report: ReportData) -> str:
    if not report.message.text:
        return ""
    content = f'<pre tabindex="0" aria-labelledby="h-text">{_multiline(report.message.text)}</pre>'
    return _section("text", "What the compiler or runtime said", content)


def _foot(report: ReportData) -> str:
    lines = []
    if report.logdir is not None:
        command = f"xprof --logdir={shlex.quote(report.logdir)} --port=6006"
        lines.append(f"Profile, for XProf's Memory Viewer: <code>{_e(command)}</code>")
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += [_e(versions)] if versions else []
    lines.append(f"fingerprint <code>{fingerprint(report)}</code>")
    return f"<footer>{''.join(f'<p>{line}</p>' for line in lines)}</footer>"
