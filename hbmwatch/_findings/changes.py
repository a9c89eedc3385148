"""Whether `verify` can try a change on a program, so that no finding names one in vain."""

from __future__ import annotations

import math
from collections.abc import Callable

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._xla.shardings import is_replicated
from hbmwatch._xla.types import float_bits


def can_try(facts: ProgramFacts, change: str) -> bool:
    """Whether a program has something that a change applies to.

    Args:
        facts: The failing program.
        change: The name of the change; "" stands for none.
    """
    applies = _APPLIES.get(change)
    return applies is None or applies(facts)


def _narrows(facts: ProgramFacts) -> bool:
    """Whether an array that is passed in is a float wider than bfloat16."""
    return any((float_bits(a.element_type) or 0) > 16 and a.dims for a in facts.arguments)


def _shards(facts: ProgramFacts) -> bool:
    """Whether the mesh divides a dimension of an argument that all devices hold in full."""
    devices = math.prod(facts.axes.values())
    return any(
        length >= devices and length % devices == 0
        for argument in facts.arguments
        if is_replicated(argument.sharding, len(argument.dims))
        for length in argument.dims
    )


_APPLIES: dict[str, Callable[[ProgramFacts], bool]] = {
    "bfloat16": _narrows,
    "sharding": _shards,
}
