"""What a value is a copy, a slice or a cast of."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.graph import Graph
from hbmwatch._analysis.sources import source_of
from tests.hlo import BF16, Hlo

DIMS = (8, 256)


def source(hlo: Hlo, of: int) -> int:
    """The id of the source of an instruction."""
    program = hlo.program()
    instruction = program.instruction(of)
    assert instruction is not None
    return source_of(Graph(program), instruction).id


@pytest.mark.parametrize(
    ("opcode", "dims", "is_source"),
    [
        ("copy", DIMS, True),
        ("convert", DIMS, True),
        ("dynamic-slice", (1, 256), True),
        ("all-gather", (32, 256), True),
        ("tanh", DIMS, False),
        ("dot", DIMS, False),
    ],
)
def test_moves_slices_casts_and_gathers_are_walked_through(
    opcode: str, dims: tuple[int, ...], is_source: bool
) -> None:
    """What computes is a source itself."""
    hlo = Hlo()
    x = hlo.parameter(*DIMS, path="x")
    made = hlo.add(opcode, x, dims=dims, dtype=BF16)

    assert source(hlo, made) == (x if is_source else made)


def test_a_fusion_is_entered_and_left() -> None:
    """The operand that becomes its parameter is the source of what it casts."""
    hlo = Hlo()
    x, y = hlo.parameter(*DIMS, path="x"), hlo.parameter(*DIMS, path="y")
    inside = hlo.inner()
    inside.parameter(*DIMS)
    second = inside.parameter(*DIMS)
    inside.add("convert", second, dims=DIMS, dtype=BF16)
    made = hlo.fusion(x, y, dims=DIMS, inside=inside, dtype=BF16)

    assert source(hlo, made) == y


@pytest.mark.parametrize("changes", [False, True])
def test_a_carried_value_is_the_argument_where_the_loop_does_not_change_it(changes: bool) -> None:
    """In the body of the loop, and behind it."""
    hlo = Hlo()
    x = hlo.parameter(*DIMS, path="x")
    begin = hlo.add("tuple", x)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    entry = body.add("get-tuple-element", carried, dims=DIMS, tuple_index=0)
    row = body.add("dynamic-slice", entry, dims=(1, 256))
    body.add("tuple", body.add("tanh", entry, dims=DIMS) if changes else entry)
    loop = hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    behind = hlo.add("get-tuple-element", loop, dims=DIMS, tuple_index=0)

    assert source(hlo, row) == (entry if changes else x)
    assert source(hlo, behind) == (behind if changes else x)


@pytest.mark.parametrize("changes", [False, True])
def test_a_carried_value_passes_through_copies_and_an_inner_loop(changes: bool) -> None:
    """XLA:TPU copies what a loop keeps to VMEM and back, and passes it on through inner loops."""
    hlo = Hlo()
    x = hlo.parameter(*DIMS, path="x")
    begin = hlo.add("tuple", x)
    shape = hlo.known[begin]["shape"]
    body, within = hlo.inner(), hlo.inner()
    entry = body.add("get-tuple-element", body.add("parameter", shape=shape), dims=DIMS)
    inner = within.add("get-tuple-element", within.add("parameter", shape=shape), dims=DIMS)
    within.add("tuple", within.add("tanh", inner, dims=DIMS) if changes else inner)
    started = body.add("copy-start", entry, dims=DIMS)
    copied = body.add("copy-done", started, dims=DIMS)
    loop = body.add("while", body.add("tuple", copied), shape=shape, calls=within)
    body.add("tuple", body.add("get-tuple-element", loop, dims=DIMS, tuple_index=0))
    outer = hlo.add("while", begin, shape=shape, calls=body)
    behind = hlo.add("get-tuple-element", outer, dims=DIMS, tuple_index=0)

    assert source(hlo, behind) == (behind if changes else x)


def test_a_ring_ends() -> None:
    """In a damaged program a copy may be a copy of itself."""
    hlo = Hlo()
    x = hlo.parameter(*DIMS, path="x")
    made = hlo.add("copy", x, dims=DIMS)
    hlo.instructions[-1]["operand_ids"] = (made,)

    assert source(hlo, made) == made
