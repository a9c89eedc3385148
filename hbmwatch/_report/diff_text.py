"""What changed between two memory peaks, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.sizes import format_change, format_size
from hbmwatch._records.text import clean, columns, kind_name, packed, sentence, wrapped
from hbmwatch._report.diff import GROUPINGS, Change, Group

if TYPE_CHECKING:
    from hbmwatch._report.comparison import Comparison, Entry

_NAME, _SOURCE, _SHAPES = 34, 24, 46
_LARGE = 0.1  # of what changed most: such a change stands out


def heading(comparison: Comparison) -> str:
    """The line with which a comparison begins."""
    before, after = comparison.peaks
    old, new = comparison.total_bytes
    module = after.module if after.module == before.module else f"{before.module}, {after.module}"
    sizes = f"{format_size(old)} -> {format_size(new)} ({format_change(new - old)})"
    return f"Memory of {clean(module, 60)}: {sizes}"


def diff_text(
    comparison: Comparison, top: int = 10, look: Look = PLAIN, grouping: str = "origin"
) -> str:
    """The changes as a table.

    Args:
        comparison: The two reports.
        top: The number of changes to show.
        look: How wide it is; by default below 100 columns, and plain.
        grouping: What the changes are grouped by, a key of GROUPINGS.
    """
    lines = list(map(look.strong, wrapped(heading(comparison), 0, look=look)))
    lines += wrapped(sentence(comparison.verdict()), look=look)
    found, account = comparison.changes(grouping), comparison.account()
    findings = _findings(comparison, look)
    if found or any(entry.before_bytes != entry.after_bytes for entry in account):
        lines += _account(account)
    elif not any(comparison.findings() or ()):
        lines.append("  no changes")
    if found:
        by = "" if grouping == "origin" else f", by {GROUPINGS[grouping]}"
        lines += [f"  Changes at the peak{by}", *_table(found, top, look, grouping)]
    return "\n".join(map(look.marked, [*lines, *findings]))


def _account(account: Sequence[Entry]) -> list[str]:
    """The account in columns, and by how much each line changed."""
    names = [f"  {entry.name}" if entry.is_part else entry.name for entry in account]
    old = [format_size(entry.before_bytes) for entry in account]
    new = [format_size(entry.after_bytes) for entry in account]
    widths = [max(map(len, column)) for column in (names, old, new)]
    lines = []
    for name, before, after, entry in zip(names, old, new, account, strict=True):
        line = f"  {name:<{widths[0]}}  {before:>{widths[1]}} -> {after:>{widths[2]}}"
        grown = entry.after_bytes - entry.before_bytes
        lines.append(f"{line}  ({format_change(grown)})" if grown else line)
    return lines


def _table(found: Sequence[Change], top: int, look: Look, grouping: str) -> list[str]:
    """Lines for each change: by how much and what made it, then the buffers before and after.

    One operation has one shape; other groups have several.
    """
    shown, rest = found[:top], found[top:]
    most = max(abs(change.delta_bytes) for change in found)
    deltas = [format_change(change.delta_bytes) for change in shown]
    kinds = [kind_name(change.kind) for change in shown]
    delta_width, kind_width = max(map(len, deltas)), max(map(len, kinds))
    indent = 4 + delta_width + 2 + (kind_width + 2 if kind_width else 0)
    extra = look.width - PLAIN.width
    lines = []
    for change, delta, kind in zip(shown, deltas, kinds, strict=True):
        room = look.width - indent
        source = clean(change.source, min(_SOURCE + max(0, extra // 2), room // 2))
        room -= columns(source) + 2 if source else 0
        name = clean(change.name, min(_NAME + max(0, extra // 2), room))
        cells = [f"    {delta:>{delta_width}}", kind.ljust(kind_width), name, source]
        line = "  ".join(filter(None, cells)).rstrip()
        is_large = abs(change.delta_bytes) >= _LARGE * most
        lines.append(look.strong(line) if is_large else line)
        shapes = _shapes(change) if grouping == "origin" else ""
        cells = [
            *_counts(change, look.width - indent),
            clean(shapes, min(_SHAPES + max(0, extra), look.width - indent)),
        ]
        lines += packed(filter(None, cells), indent, look, "  ")
    if rest:
        size = format_change(sum(change.delta_bytes for change in rest))
        lines.append(f"    and {len(rest)} more ({size})")
    return lines


def _counts(change: Change, room: int) -> list[str]:
    """Count and size of the buffers, before and after; in two parts if one has no room."""
    before, after = f"{_count(change.before)} ->", _count(change.after)
    both = f"{before} {after}"
    return [both] if len(both) <= room else [before, after]


def _count(group: Group) -> str:
    if not group.count:
        return "none"
    if group.largest_bytes * group.count != group.size_bytes:
        return f"{group.count} buffers, {format_size(group.size_bytes)}"
    number = f"{group.count} x " if group.count > 1 else ""
    return f"{number}{format_size(group.largest_bytes)}"


def _shapes(change: Change) -> str:
    old, new = change.before.shape, change.after.shape
    if not old or not new:
        return f"{new}, new" if new else f"{old}, gone" if old else ""
    return new if old == new else f"{old} -> {new}"


def _findings(comparison: Comparison, look: Look) -> list[str]:
    """The findings that only one of the programs has."""
    found = comparison.findings()
    if found is None:
        return wrapped(comparison.why_no_findings(), look=look)
    lines = []
    for head, findings in (("that are gone", found[0]), ("that are new", found[1])):
        lines += [f"  Findings {head}"] if findings else []
        for finding in findings:
            saves = finding.saves_bytes
            freed = f" (frees up to {format_size(saves)})" if saves else ""
            lines += wrapped(f"{sentence(finding.title)}{freed}", indent=4, look=look)
    return lines
