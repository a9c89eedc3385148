"""The report of many processes as a page: a strip of the processes by free memory, and the text."""

from __future__ import annotations

import string
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from hbmwatch._records.sizes import format_size
from hbmwatch._report.assets import asset, policy
from hbmwatch._report.fold_text import folded_text
from hbmwatch._report.markup import markup
from hbmwatch._report.page_data import safe

if TYPE_CHECKING:
    from hbmwatch._records.folded import FoldedData, FoldedGroup

_HEIGHT = 120  # of a strip, in its own units; a process is one unit wide
_FEW = 100  # so many processes have a gap between them


def folded_page(folded: FoldedData) -> str:
    """The report as one HTML document, which loads nothing and has no script."""
    style, text = asset("fold.css"), folded_text(folded)
    title = text.partition("\n")[0]
    return string.Template(asset("fold.html")).substitute(
        title=escape(safe(title)),
        heading=markup(title),
        policy=policy(style=style),
        style=style,
        strips="\n".join(map(_strip, folded.groups)),
        text=markup(text),
    )


def _strip(group: FoldedGroup) -> str:
    """A group's processes side by side, each as high as its free memory."""
    heading = f"<h2>{len(group.processes)} x {markup(group.headline)}</h2>"
    known = [size for size in group.free_bytes if size is not None]
    if not known:
        return f"{heading}\n<p>The free memory of these processes is not known.</p>"
    most = max(known) or 1
    standing_out = {outlier.process for outlier in group.outliers}
    bars: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for place, (process, size) in enumerate(zip(group.processes, group.free_bytes)):
        if size is not None:
            height = max(1, round(size / most * _HEIGHT))
            bars[process in standing_out].append((place, height))
    band = "".join(
        f"M{place} 0h1v{_HEIGHT}h-1z"
        for place, process in enumerate(group.processes)
        if process in standing_out
    )
    first, last = group.processes[0].index, group.processes[-1].index
    caption = (
        f"Free memory, process {first} to process {last}: {format_size(min(known))} to "
        f"{format_size(most)}."
    )
    if band:
        caption += " A band from the bottom to the top marks a process that stands out."
    few = ' class="few"' if len(group.processes) <= _FEW else ""
    return (
        f'{heading}\n<svg{few} viewBox="0 0 {len(group.processes)} {_HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(caption, quote=True)}">'
        f'<path class="band" d="{band}"/><path class="alike" d="{_path(bars[False])}"/>'
        f'<path class="outlier" d="{_path(bars[True])}"/></svg>\n<p>{escape(caption)}</p>'
    )


def _path(bars: Iterable[tuple[int, int]]) -> str:
    """Bars of width 1 as one SVG path."""
    return "".join(f"M{place} {_HEIGHT}v-{height}h1v{height}z" for place, height in bars)
