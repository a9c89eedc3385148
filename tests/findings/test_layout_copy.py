"""A second copy of an argument in another layout."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify
from tests.findings.small import classified
from tests.hlo import BF16, MIB, Hlo, shape_of

OTHER = (0, 1)


@pytest.mark.parametrize(
    ("opcode", "order", "slug"),
    [("copy", OTHER, "layout-copy"), ("copy", (1, 0), None), ("negate", OTHER, None)],
    ids=["another layout", "the same layout", "computed"],
)
def test_a_moved_argument_is_a_copy(opcode: str, order: tuple[int, int], slug: str | None) -> None:
    """Only where its layout differs, and nothing is computed."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    made = hlo.add(opcode, x, shape=shape_of(512, 512, minor_to_major=order))

    assert classified(hlo.facts((made,))) == slug


def test_a_copy_in_another_memory_space_has_the_same_layout() -> None:
    """The layout is compared, not S(1)."""
    hlo = Hlo()
    shape = shape_of(512, 512)
    shape["layout"]["memory_space"] = 1
    made = hlo.add("copy", hlo.parameter(shape=shape, path="x"), dims=(512, 512))

    assert classified(hlo.facts((made,))) is None


def test_a_padded_copy_is_found_too() -> None:
    """In that layout the argument takes the 4 MiB itself: what it takes now is freed."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="table")
    made = hlo.add("copy", x, shape=shape_of(512, 512, minor_to_major=OTHER))
    (finding,) = classify.find(hlo.facts((made,), sizes={made: 4 * MIB}))

    assert (finding.slug, finding.saves_bytes) == ("layout-copy", MIB)
    assert "a copy of the argument table" in finding.evidence


def carried(changes: bool) -> Hlo:
    """A loop that starts from a copy of an argument in another layout, and its body."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    copy = hlo.add("copy", x, shape=shape_of(512, 512, minor_to_major=OTHER))
    begin = hlo.add("tuple", copy)
    body = hlo.inner()
    state = body.add("parameter", shape=hlo.known[begin]["shape"])
    value = body.add("get-tuple-element", state, dims=(512, 512), tuple_index=0)
    body.add("tuple", body.add("negate", value, dims=(512, 512)) if changes else value)
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    return hlo


@pytest.mark.parametrize(
    ("donated", "changes", "slug"),
    [(False, True, None), (True, True, "layout-copy"), (False, False, "layout-copy")],
    ids=["a carry", "donated", "only read"],
)
def test_the_carry_of_a_loop_is_no_second_copy(
    donated: bool, changes: bool, slug: str | None
) -> None:
    """It needs memory of its own in any layout, unless the argument is donated."""
    hlo = carried(changes)
    copy = next(i["id"] for i in hlo.instructions if i["opcode"] == "copy")
    alias = {"entries": [{"parameter_number": 0, "output_shape_index": [0]}]} if donated else {}

    assert classified(hlo.facts((copy,), input_output_alias=alias)) == slug


@pytest.mark.parametrize(("dims", "slug"), [((1024, 256), None), ((1, 512, 512), "layout-copy")])
def test_a_reshape_is_no_copy_in_another_layout(dims: tuple[int, ...], slug: str | None) -> None:
    """The program asks for other dimensions."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    order = tuple(range(len(dims)))
    made = hlo.add("copy", x, shape=shape_of(*dims, minor_to_major=order))

    assert classified(hlo.facts((made,))) == slug


@pytest.mark.parametrize(("reader", "slug"), [("custom-call", "layout-copy"), ("sort", None)])
def test_what_a_sort_orders_in_place_is_copied_in_any_layout(reader: str, slug: str | None) -> None:
    """A sort needs memory for its result, unless the argument is donated."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    made = hlo.add("copy", x, shape=shape_of(512, 512, minor_to_major=OTHER))
    hlo.add(reader, made, dims=(512,))

    assert classified(hlo.facts((made,))) == slug


def test_a_cast_is_no_copy_in_another_layout() -> None:
    """XLA may cast a whole stack, in another layout, before a loop multiplies by it."""
    hlo = Hlo()
    x = hlo.parameter(512, 512, path="x")
    narrow = hlo.add("convert", x, dims=(512, 512), dtype=BF16)
    shape = shape_of(512, 512, dtype=BF16, minor_to_major=OTHER)
    made = hlo.add("copy", narrow, shape=shape)

    assert classified(hlo.facts((made,))) is None
