"""All findings of a program, ranked: what to change first."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import (
    aggregate,
    arguments,
    checkpoint,
    classify,
    donation,
    donation_unusable,
    dtype,
    gather,
    live_arrays,
    long_lived,
    padding,
    replication,
    residuals,
    training_state,
    vmem,
    zero_gradients,
)
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.changes import can_try
from hbmwatch._findings.fitting_batch import has_training_batch
from hbmwatch._records.report import Finding

# If the program is only a little over the limit, a remedy that frees two fifths of the peak counts
# in full; one that frees more is not more likely to be the cause.
LEAST_SHARE_OF_PEAK = 0.4
# A finding that frees a quarter of the missing bytes comes before one without a known cause.
LEAST_SHARE_OF_OVER_LIMIT = 1 / 4
T = TypeVar("T")
Finder = Callable[[ProgramFacts], Finding | None]

# Each looks at the program as a whole; classify.RULES at its large buffers.
FINDERS: tuple[Finder, ...] = (
    donation.find,
    donation_unusable.find,
    zero_gradients.find,
    replication.find,
    gather.find,
    live_arrays.find,
    arguments.find,
    padding.find,
    checkpoint.find,
    residuals.find,
    dtype.find,
    training_state.find,
)
# It is tried only if no other finding is worth reporting.
LAST_FINDERS: tuple[Finder, ...] = (long_lived.find,)
# What costs nothing to do is reported even where it frees little: a thousandth of the peak.
FREE = "donation"
LEAST_FREE_SHARE = 0.001

_OF_PROGRAMS = (
    donation,
    donation_unusable,
    replication,
    gather,
    live_arrays,
    arguments,
    padding,
    checkpoint,
    residuals,
    dtype,
    long_lived,
    zero_gradients,
    training_state,
    aggregate,
    vmem,
)
_EVERY: tuple[Advice, ...] = (
    *(rule.advice for rule in classify.RULES if rule.advice is not None),
    *(module.ADVICE for module in _OF_PROGRAMS),
)
ADVICE: dict[str, Advice] = {advice.slug: advice for advice in _EVERY}
# What does not help where there is no batch to make smaller, by the text for other programs.
_BATCHLESS = {a.will_not_help: a.without_batch for a in _EVERY if a.without_batch is not None}


def find_findings(
    facts: ProgramFacts, failed: list[Exception] | None = None
) -> tuple[Finding, ...]:
    """The remedies for a program, ranked; only the aggregate if every buffer is ordinary.

    Args:
        facts: The failing program.
        failed: Receives the exceptions of finders that fail, so that the other findings are made;
            None lets them out.
    """

    def attempt(find: Callable[[ProgramFacts], T], otherwise: T) -> T:
        try:
            return find(facts)
        except Exception as error:
            if failed is None:
                raise
            failed.append(error)
            return otherwise

    found = [finding for find in FINDERS if (finding := attempt(find, None)) is not None]
    found = _larger_of_each_slug(found, attempt(classify.find, list[Finding]()))
    for find in LAST_FINDERS:
        if not _worth_reporting(facts, found) and (last := attempt(find, None)) is not None:
            found.append(last)
    worth = _worth_reporting(facts, found)
    rest = attempt(functools.partial(aggregate.find, others=worth), None)
    worth += [rest] if rest is not None else []
    worth = [f if can_try(facts, f.change) else dataclasses.replace(f, change="") for f in worth]
    worth = worth if has_training_batch(facts) else [_without_batch(f) for f in worth]
    return tuple(
        sorted(
            worth,
            key=lambda f: (
                not _is_about_arguments(facts, f, worth),
                f.slug == aggregate.ADVICE.slug and _has_cause(facts, worth),
                -rank(facts, f),
            ),
        )
    )


def _without_batch(finding: Finding) -> Finding:
    """A finding that does not name a smaller batch, which the program does not have."""
    text = _BATCHLESS.get(finding.will_not_help, finding.will_not_help)
    return dataclasses.replace(finding, will_not_help=text)


def _has_cause(facts: ProgramFacts, findings: Sequence[Finding]) -> bool:
    """Whether a finding other than the aggregate frees a good part of what is missing."""
    least = LEAST_SHARE_OF_OVER_LIMIT * (facts.over_limit_bytes or 0)
    freed = (f.saves_bytes or 0 for f in findings if f.slug != aggregate.ADVICE.slug)
    return any(size >= least for size in freed)


def _is_about_arguments(facts: ProgramFacts, finding: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a finding is on arguments that exceed the limit alone: it comes first."""
    if all(other.slug != arguments.ADVICE.slug for other in findings):
        return False
    given = {op.instruction for op in facts.summary.ops if op.kind == "parameter"}
    return not given.isdisjoint(finding.buffers)


def _larger_of_each_slug(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """The findings of both lists; of one slug, the one that frees more."""
    freed = {finding.slug: finding.saves_bytes or 0 for finding in second}
    kept = [f for f in first if (f.saves_bytes or 0) > freed.get(f.slug, -1)]
    slugs = {finding.slug for finding in kept}
    return kept + [finding for finding in second if finding.slug not in slugs]


def _worth_reporting(facts: ProgramFacts, found: Sequence[Finding]) -> list[Finding]:
    """The findings that free at least the minimum, and what is free."""
    minimum = facts.minimum_saving_bytes
    free = min(minimum, LEAST_FREE_SHARE * facts.peak_bytes)
    return [f for f in found if (f.saves_bytes or 0) >= (free if f.slug == FREE else minimum)]


def rank(facts: ProgramFacts, finding: Finding) -> float:
    """The weight, times the share of the bytes over the limit that the remedy frees."""
    advice = ADVICE[finding.slug]
    least = (advice.least_share_of_peak or LEAST_SHARE_OF_PEAK) * facts.peak_bytes
    needed = max(facts.over_limit_bytes or 0, least, 1.0)
    weight = advice.prior_weight if advice.weigh is None else advice.weigh(facts, finding)
    return weight * min(1.0, (finding.saves_bytes or 0) / needed)
