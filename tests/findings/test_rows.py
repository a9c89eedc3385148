"""The rows of outputs, as findings name them."""

from __future__ import annotations

import dataclasses

import pytest

from hbmwatch._findings import rows
from tests.hlo import Hlo

DIMS = (512, 512)


@pytest.mark.parametrize(("moves", "is_found"), [(3, True), (4, False)])
def test_an_output_has_the_row_of_what_it_is_moved_from(moves: int, is_found: bool) -> None:
    """Where no more copies are between than the compiler makes."""
    hlo = Hlo()
    made = moved = hlo.add("sort", dims=DIMS)
    for _ in range(moves):
        moved = hlo.add("copy", moved, dims=DIMS)
    facts = hlo.facts(outputs=(made,))
    (output,) = facts.outputs
    copied = dataclasses.replace(output, instruction=facts.program.instruction(moved))

    assert rows.MOST_MOVES == 3
    assert rows.rows_of_outputs(facts, [copied]) == ([f"sort.{made}"] if is_found else [])


def test_an_entry_of_a_tuple_has_its_own_row() -> None:
    """What an instruction with several results is named by, in the summary too."""
    hlo = Hlo()
    loop = hlo.add("custom-call", dims=DIMS)
    entry = hlo.add("get-tuple-element", loop, dims=DIMS, tuple_index=0)
    facts = hlo.facts(outputs=(loop,))
    (output,) = facts.outputs
    taken = dataclasses.replace(output, instruction=facts.program.instruction(entry))

    assert rows.rows_of_outputs(facts, [taken]) == [f"custom-call.{loop}"]
