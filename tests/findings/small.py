"""What tests on small programs ask: the largest candidate, and what it is taken for."""

from __future__ import annotations

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.rank import find_findings
from hbmwatch._records.message import OomMessage
from tests.hlo import MIB


def largest(facts: ProgramFacts) -> Candidate:
    """The largest family of buffers that the rules look at."""
    return classify.candidates(facts)[0]


def classified(facts: ProgramFacts) -> str | None:
    """The slug of the largest family; None where it is ordinary."""
    advice = classify.classify(largest(facts))
    return advice.slug if advice is not None else None


def found(facts: ProgramFacts) -> list[str]:
    """The slugs of all findings, ranked."""
    return [finding.slug for finding in find_findings(facts)]


def limited(limit_mib: float, used_mib: float | None = None) -> OomMessage:
    """The message of a program that does not fit."""
    used = None if used_mib is None else int(used_mib * MIB)
    return OomMessage("RESOURCE_EXHAUSTED", limit_bytes=int(limit_mib * MIB), used_bytes=used)
