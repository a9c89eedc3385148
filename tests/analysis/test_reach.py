"""What is computed from a value."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.reach import reached
from tests.hlo import Hlo


@pytest.mark.parametrize("position", [0, 1])
def test_a_loop_passes_on_values_by_their_position(position: int) -> None:
    """What enters at one position comes out there, and where the body puts what it computes."""
    hlo = Hlo()
    values = [hlo.add("broadcast", dims=(8,)) for _ in range(3)]
    begin = hlo.add("tuple", *values)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    first, second, third = (
        body.add("get-tuple-element", carried, dims=(8,), tuple_index=i) for i in range(3)
    )
    made = body.add("negate", first, dims=(8,))
    body.add("tuple", first, second, made)
    loop = hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    after = [hlo.add("get-tuple-element", loop, dims=(8,), tuple_index=i) for i in range(3)]
    facts = hlo.facts()
    (start,) = (i for i in facts.program.scheduled if i.id == values[position])
    found = set(reached(facts.buffers.graph, [start]))

    expected = {
        0: {values[0], first, made, third, after[0], after[2]},
        1: {values[1], second, after[1]},
    }
    assert found == expected[position]


def test_a_branch_computes_all_of_its_values() -> None:
    """What it is given is not followed by position."""
    hlo = Hlo()
    x = hlo.parameter(8, path="x")
    branch = hlo.inner()
    given = branch.add("parameter", dims=(8,))
    inside = branch.add("negate", given, dims=(8,))
    call = hlo.add("conditional", x, dims=(8,), calls=branch)
    result = hlo.add("negate", call, dims=(8,))
    graph = hlo.facts().buffers.graph

    start = graph.parameters[0].instruction
    assert set(reached(graph, [start])) == {x, given, inside, call, result}
