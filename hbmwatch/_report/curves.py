"""Two memory curves as one page: a step before and after a change. The page loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.sizes import format_size
from hbmwatch._report.markup import markup
from hbmwatch._report.page_data import safe

_WIDTH, _HEIGHT, _MARGIN = 900, 280, 12
_MOST_POINTS = 900

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ --ink: #1f2328; --card: #fff; --line: #d0d7de;
  --before: #9a4a00; --after: #0550ae; --limit: #cf222e }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #eceef1; --card: #101215; --line: #3a404a;
  --before: #f0a35e; --after: #8db8ff; --limit: #ff7d7d }} }}
@media print {{ :root {{ --ink: #000; --card: #fff; --line: #999;
  --before: #000; --after: #000; --limit: #000 }} @page {{ size: A4; margin: 12mm }} }}
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; color: var(--ink); background: var(--card) }}
h1, li {{ overflow-wrap: anywhere }}
svg {{ width: 100%; height: auto; border: 1px solid var(--line) }}
li svg {{ width: 34px; height: 10px; border: 0; margin-right: 8px; vertical-align: middle }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px }}
ul {{ list-style: none; padding: 0 }}
polyline, line {{ fill: none; stroke-width: 2; vector-effect: non-scaling-stroke }}
.before {{ stroke: var(--before); stroke-dasharray: 5 3 }} .after {{ stroke: var(--after) }}
.limit {{ stroke: var(--limit); stroke-dasharray: 1 4; stroke-width: 3 }}
</style>
<main>
<h1>{heading}</h1>
<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{curves}</svg>
<ul>{legend}</ul>
<p>Memory on one device over the program, from its first instruction to its last. Both programs are
drawn over the same width, and neither axis is time.</p>
<pre>{text}</pre>
</main>
</html>
"""


def curves_page(
    title: str,
    text: str,
    curves: Sequence[tuple[str, PeakSummary]],
    limit_bytes: int | None,
) -> str:
    """A page with up to two memory curves, the limit, and a text.

    Args:
        title: The heading.
        text: What is shown below the curves, as it is.
        curves: A name and a peak for each curve: the step before, and after.
        limit_bytes: A line at the memory that is available; None for no line.
    """
    top = max([1, limit_bytes or 0, *(summary.peak_bytes for _, summary in curves)])
    classes = ("before", "after")
    drawn, legend = [], []
    for style, (name, summary) in zip(classes, curves, strict=False):
        drawn.append(f'<polyline class="{style}" points="{_points(summary, top)}"/>')
        legend.append((style, f"{name}: peak {format_size(summary.peak_bytes)}"))
    if limit_bytes is not None:
        y = _y(limit_bytes, top)
        drawn.append(f'<polyline class="limit" points="0,{y:.1f} {_WIDTH},{y:.1f}"/>')
        legend.append(("limit", f"available: {format_size(limit_bytes)}"))
    return _PAGE.format(
        title=escape(safe(title)),
        heading=markup(title),
        width=_WIDTH,
        height=_HEIGHT,
        label=escape(safe("; ".join(words for _, words in legend)), quote=True),
        curves="".join(drawn),
        legend="".join(_key(style, words) for style, words in legend),
        text=markup(text),
    )


def curve_picture(summary: PeakSummary, limit_bytes: int | None) -> tuple[str, str]:
    """A memory curve as an SVG document of its own, and the same in words."""
    top = max(1, limit_bytes or 0, summary.peak_bytes)
    label = f"Memory curve of the program: peak {format_size(summary.peak_bytes)}"
    limit = ""
    if limit_bytes is not None:
        y = _y(limit_bytes, top)
        limit = f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#cf222e" stroke-dasharray="6 4"/>'
        label += f", limit {format_size(limit_bytes)}"
    curve = f'<polyline points="{_points(summary, top)}" stroke="#0550ae" stroke-width="2"/>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" fill="none">'
        f'<rect width="100%" height="100%" fill="#fff"/>{curve}{limit}</svg>'
    )
    return svg, label


def _key(style: str, words: str) -> str:
    """An entry of the legend: a piece of the line, and what it is."""
    line = f'<line class="{style}" x2="34" y1="5" y2="5"/>'
    return f'<li><svg viewBox="0 0 34 10" aria-hidden="true">{line}</svg>{markup(words)}</li>'


def _points(summary: PeakSummary, top: int) -> str:
    """The curve over the width of the page; of many program points, the highest of each group."""
    heap = [int(value) for value in summary.heap_bytes] or [summary.peak_bytes]
    group = -(-len(heap) // _MOST_POINTS)
    values = [max(heap[start : start + group]) for start in range(0, len(heap), group)]
    step = _WIDTH / max(1, len(values) - 1)
    return " ".join(f"{i * step:.1f},{_y(value, top):.1f}" for i, value in enumerate(values))


def _y(value: int, top: int) -> float:
    return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * value / top
