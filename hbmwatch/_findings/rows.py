"""The rows of arguments and outputs in a summary, as a finding names the buffers it is about."""

from __future__ import annotations

from collections.abc import Iterable

from hbmwatch._analysis.facts import Argument, Output, ProgramFacts


def rows_of(facts: ProgramFacts, arguments: Iterable[Argument]) -> list[str]:
    """The instructions of arguments that have a row in the summary, as it names them."""
    rows = {op.instruction for op in facts.summary.ops if op.kind == "parameter"}
    names = {p.number: p.instruction.name for p in facts.buffers.graph.parameters}
    found = (names.get(argument.number, "") for argument in arguments)
    return [name for name in found if name in rows]


def rows_of_outputs(facts: ProgramFacts, outputs: Iterable[Output]) -> list[str]:
    """The instructions of outputs that have a row in the summary, as it names them."""
    rows: dict[str, list[str]] = {}
    for op in facts.summary.ops:
        if op.kind == "output":
            rows.setdefault(op.instruction.partition("{")[0], []).append(op.instruction)
    makers = {o.instruction.name: None for o in outputs if o.instruction is not None}
    return [row for name in makers for row in rows.get(name, ())]
