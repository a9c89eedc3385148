"""What tests on small programs ask: the largest candidate, and what it is taken for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.rank import find_findings
from hbmwatch._records.message import OomMessage
from tests.hlo import F32, MIB, Hlo


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


def training_step(
    trees: Sequence[str],
    rows: int = 512,
    leaves: Sequence[str] = ("['w']",),
    dtype: int = F32,
    limit_mib: float = 0.5,
    name: str = "jit(f)/transpose(jvp())/dot_general",
    **module: Any,
) -> ProgramFacts:
    """A step that returns trees of leaves of 1 MiB updated, and rows that a gradient makes.

    All trees but the first one have the dtype.
    """
    hlo = Hlo()
    state = []
    for number, tree in enumerate(trees):
        of = F32 if number == 0 else dtype
        state += [hlo.parameter(512, 512, path=tree + leaf, dtype=of) for leaf in leaves]
    made = [hlo.add("negate", w, shape=hlo.known[w]["shape"]) for w in state]
    gradient = hlo.add("sort", dims=(rows, 512), name=name)
    hlo.add("tuple", *made)
    entries = [
        {"parameter_number": n, "output_shape_index": [n] if len(state) > 1 else []}
        for n in range(len(state))
    ]
    return hlo.facts(
        (gradient,),
        message=limited(limit_mib, len(state) + 1),
        input_output_alias={"entries": entries},
        **module,
    )
