"""Two reports side by side: one account of their memory, the limit, and what was found in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import bytes_by_kind
from hbmwatch._report.diff import Change, changes
from hbmwatch._report.json import SCHEMA, plain

if TYPE_CHECKING:
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._records.report import Finding, ReportData

_KINDS = (
    "arguments",
    "outputs",
    "temporaries",
    "constants",
    "thread-local",
    "other",
    "small buffers",
)
DONATED = "reused by outputs (donated)"
_VARIES = re.compile(r"-?[\d.]+ (?:[KMGTPE]i)?B|\d+")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the account.

    Attributes:
        name: What the memory is.
        before_bytes: Bytes in the first program.
        after_bytes: Bytes in the second one.
        is_part: Whether it is a part of the line above; the others sum to the total.
    """

    name: str
    before_bytes: int
    after_bytes: int
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed from one report to another. Both have a summary.

    Attributes:
        before: The first report.
        after: The second one.
        limit_bytes: The memory that a program can have; None if unknown.
        limit_note: What has that limit (" (v5e)"); "" if that is not said.
    """

    before: ReportData
    after: ReportData
    limit_bytes: int | None = None
    limit_note: str = ""

    @property
    def peaks(self) -> tuple[PeakSummary, PeakSummary]:
        """The peaks of the two programs."""
        before, after = self.before.summary, self.after.summary
        assert before is not None and after is not None
        return before, after

    @property
    def total_bytes(self) -> tuple[int, int]:
        """What each program needs: all that the compiler allocates for it."""
        before, after = self.peaks
        return before.total_allocation_bytes, after.total_allocation_bytes

    def account(self) -> tuple[Entry, ...]:
        """What the two programs need: the buffers at the peak by kind, and what is not in use then.

        Lines that are 0 in both are left out.
        """
        before, after = self.peaks
        old, new = bytes_by_kind(before.ops), bytes_by_kind(after.ops)
        kinds = dict.fromkeys((*_KINDS, *new, *old))
        entries = [Entry(kind, old.get(kind, 0), new.get(kind, 0)) for kind in kinds]
        entries.insert(1, Entry(DONATED, before.aliased_bytes, after.aliased_bytes, is_part=True))
        unused = (before.fragmentation_bytes, after.fragmentation_bytes)
        entries.append(Entry("not in use at the peak", *unused))
        return tuple(entry for entry in entries if entry.before_bytes or entry.after_bytes)

    def changes(self, grouping: str = "origin") -> tuple[Change, ...]:
        """The groups of buffers at the peak that differ, the largest changes first."""
        return changes(*self.peaks, grouping)

    def verdict(self) -> str:
        """Whether the second program fits the limit, and what the change has to do with it."""
        if self.limit_bytes is None:
            return ""
        before, after = self.total_bytes
        needed, left = before - self.limit_bytes, self.limit_bytes - after
        limit = f"the limit of {format_size(self.limit_bytes)}{self.limit_note}"
        if needed <= 0:
            so = "so is the second" if left >= 0 else f"the second is {format_size(-left)} over"
            return f"The first program is within {limit}, and {so}."
        effect = "adds" if after > before else "frees"
        amount = format_size(abs(before - after)) if after != before else "nothing"
        change = f"The first program is {format_size(needed)} over {limit}; "
        change += f"the change {effect} {amount}: "
        if left >= 0:
            return f"{change}enough."
        return f"{change}the second is still {format_size(-left)} over."

    def findings(self) -> tuple[tuple[Finding, ...], tuple[Finding, ...]] | None:
        """The findings that only the first program has, and those that only the second has.

        None if one of the reports could not look for any, or not for all that the other has.
        """
        if self.why_no_findings():
            return None
        return _without_pairs(self.before.findings, self.after.findings)

    def why_no_findings(self) -> str:
        """Why the findings say nothing of the change; "" if they do, or if there are none."""
        for which, report in (("first", self.before), ("second", self.after)):
            for problem in report.missing:
                if problem.startswith("findings"):
                    reason = f"the {which} has none ({problem.rstrip(': ')})"
                    return f"The findings cannot be compared: {reason}."
        if not self.before.findings and not self.after.findings:
            return ""
        reports = (self.before, self.after)
        failed = [bool(report.message.text) for report in reports]
        if failed[0] != failed[1]:
            which = "first" if failed[1] else "second"
            return (
                f"The findings cannot be compared: the {which} is not of a failure, for which more "
                "are looked for."
            )
        limited = [report.message.limit_bytes is not None for report in reports]
        if not failed[0] and limited[0] != limited[1]:
            which = "first" if limited[1] else "second"
            return (
                f"The findings cannot be compared: those of the {which} were looked for without a "
                "limit."
            )
        return ""

    def to_dict(self, grouping: str = "origin") -> dict[str, Any]:
        """The comparison as JSON-able values, with the schema version of reports.

        Args:
            grouping: What the changes are grouped by, a key of GROUPINGS.
        """
        before, after = self.peaks
        found = self.findings()
        return {
            "schema": SCHEMA,
            "before": _side(before),
            "after": _side(after),
            "limit_bytes": self.limit_bytes,
            "verdict": self.verdict(),
            "account": plain(self.account()),
            "changes": [
                {**plain(change), "delta_bytes": change.delta_bytes}
                for change in self.changes(grouping)
            ],
            "findings": None
            if found is None
            else {"gone": plain(found[0]), "new": plain(found[1])},
            "why_no_findings": self.why_no_findings(),
        }


def _without_pairs(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings that have no counterpart on the other side.

    Counterparts have one kind and, but for sizes and numbers, one title; or they are the only ones
    of their kind that are left, as a report from a profile knows fewer names than one of a failure.
    """
    for key in (lambda f: (f.slug, _VARIES.sub("*", f.title)), lambda f: f.slug):
        of_before, of_after = Counter(map(key, before)), Counter(map(key, after))
        paired = {name for name, count in of_before.items() if count == of_after[name]}
        before = [finding for finding in before if key(finding) not in paired]
        after = [finding for finding in after if key(finding) not in paired]
    return tuple(before), tuple(after)


def _side(summary: PeakSummary) -> dict[str, Any]:
    names = (
        "module",
        "memory_space",
        "peak_bytes",
        "total_allocation_bytes",
        "parameter_bytes",
        "aliased_bytes",
        "output_bytes",
        "temporary_bytes",
    )
    return {name: getattr(summary, name) for name in names}
