"""Arguments that are returned updated."""

from __future__ import annotations

import pytest

from hbmwatch._analysis import updates
from tests.hlo import Hlo

DIMS = (64, 64)


@pytest.mark.parametrize(
    ("opcode", "updated"), [("multiply", {0}), ("dot", set()), ("reduce", set()), ("copy", {0})]
)
def test_an_update_is_computed_element_by_element(opcode: str, updated: set[int]) -> None:
    """A product or a sum in between makes it another value."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS)
    made = hlo.add(opcode, w, w, dims=DIMS)
    output = hlo.add("negate", made, dims=DIMS)

    assert hlo.facts(outputs=(output,)).buffers.updated == updated


@pytest.mark.parametrize(("steps", "updated"), [(60, {0}), (61, set())])
def test_the_search_goes_up_60_steps(steps: int, updated: set[int]) -> None:
    """It recurses, so that it needs a bound."""
    hlo = Hlo()
    made = hlo.parameter(*DIMS)
    for _ in range(steps):
        made = hlo.add("negate", made, dims=DIMS)

    assert updates.MOST_STEPS == 60
    assert hlo.facts(outputs=(made,)).buffers.updated == updated


def test_a_loop_and_a_fusion_are_followed() -> None:
    """The next value comes out of a while, through a fusion."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS)
    inside = hlo.inner()
    inside.add("negate", inside.parameter(*DIMS), dims=DIMS)
    begin = hlo.add("tuple", hlo.fusion(w, dims=DIMS, inside=inside))
    body = hlo.inner()
    body.add("parameter", shape=hlo.known[begin]["shape"])
    loop = hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    output = hlo.add("get-tuple-element", loop, dims=DIMS, tuple_index=0)

    assert hlo.facts(outputs=(output,)).buffers.updated == {0}


@pytest.mark.parametrize(("written", "updated"), [(0, {0}), (1, set())])
def test_rows_that_are_written_by_index_leave_the_others(written: int, updated: set[int]) -> None:
    """A scatter updates its first operand; what it writes is no update of its source."""
    hlo = Hlo()
    cache, other = hlo.parameter(*DIMS), hlo.add("sort", dims=DIMS)
    index = hlo.add("iota", dims=(64,))
    operands = (cache, index, other) if written == 0 else (other, index, cache)
    output = hlo.add("scatter", *operands, dims=DIMS)

    assert hlo.facts(outputs=(output,)).buffers.updated == updated


@pytest.mark.parametrize(
    ("alias", "updated"),
    [({"operand_index": 0}, {0}), ({"operand_index": 1}, set()), ({"operand_index": 9}, set())],
    ids=["the argument", "another operand", "damaged"],
)
def test_a_kernel_that_writes_in_place_updates_its_operand(
    alias: dict[str, int], updated: set[int]
) -> None:
    """As Pallas does with input_output_aliases; without them it is another value."""
    hlo = Hlo()
    cache, other = hlo.parameter(*DIMS), hlo.add("sort", dims=DIMS)
    plain = hlo.add("custom-call", cache, dims=DIMS)
    output = hlo.add("custom-call", cache, other, dims=DIMS, output_operand_aliasing=[alias])

    assert hlo.facts(outputs=(output, plain)).buffers.updated == updated
