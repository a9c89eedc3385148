"""The batch with which a program should fit."""

from __future__ import annotations

from hbmwatch._analysis.facts import ProgramFacts

# 2% is left for layouts and fragmentation, which do not scale with the batch.
USABLE_SHARE_OF_LIMIT = 0.98


def fitting_length(facts: ProgramFacts) -> int:
    """The largest batch that should fit; 0 if there is none, or if no limit is known."""
    limit, over, length = facts.limit_bytes, facts.over_limit_bytes, facts.batch.length
    if limit is None or not over:
        return 0
    fixed = limit + over - facts.scaled_bytes(1.0)
    room = USABLE_SHARE_OF_LIMIT * limit - fixed
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        if facts.scaled_bytes(middle / length) <= room:
            low = middle
        else:
            high = middle
    return low
