"""The rows of arguments and outputs in a summary, as a finding names the buffers it is about."""

from __future__ import annotations

from collections.abc import Iterable

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument, Output

# Between an output and what computes it are an entry of a tuple, and a copy.
MOST_MOVES = 3


def rows_of(facts: ProgramFacts, arguments: Iterable[Argument]) -> list[str]:
    """The instructions of arguments that have a row in the summary, as it names them."""
    rows = {op.instruction for op in facts.summary.ops if op.kind == "parameter"}
    names = {a.number: name for name, a in facts.argument_rows.items() if name in rows}
    return [names[argument.number] for argument in arguments if argument.number in names]


def rows_of_outputs(facts: ProgramFacts, outputs: Iterable[Output]) -> list[str]:
    """The instructions of outputs that have a row in the summary, as it names them."""
    rows = {op.instruction for op in facts.summary.ops if op.kind == "output"}
    found: dict[str, None] = {}
    for output in outputs:
        made = output.instruction
        index = f"{{{output.index}}}"
        for _ in range(MOST_MOVES):
            if made is None or made.name in rows or made.name + index in rows:
                break
            if made.opcode == "get-tuple-element":
                index = f"{{{made.tuple_index}}}"
            made = facts.buffers.graph.first(made)
        if made is not None:
            found |= dict.fromkeys({made.name, made.name + index} & rows)
    return list(found)
