"""Small programs with a forward and a backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from tests.hlo import Hlo

FORWARD = "jit(f)/jvp()/tanh"
BACKWARD = "jit(f)/transpose(jvp())/mul"
RECOMPUTED = "jit(f)/transpose(jvp())/rematted_computation/tanh"
UNDER = "jit(f)/transpose(jvp())/checkpoint/mul"


def kept(
    count: int, name: str = FORWARD, users: Sequence[str] = (BACKWARD,), other_mib: int = 0
) -> ProgramFacts:
    """Equal temporaries of 1 MiB, each with its readers, and one of another shape."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(512, 512), name=name) for _ in range(count)]
    for number in made:
        for user in users:
            hlo.add("multiply", number, dims=(512, 512), name=user)
    others = [hlo.add("sort", dims=(other_mib, 262144), name="jit(f)/sort")] if other_mib else []
    return hlo.facts((*made, *others))
