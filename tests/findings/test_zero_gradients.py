"""Results that one number fills."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hbmwatch._findings import zero_gradients
from hbmwatch._jax.lowered import CallInfo, Leaf
from tests.hlo import MIB, Hlo

DIMS = (512, 512)
BACKWARD = "jit(f)/transpose(jvp())/neg"


@pytest.mark.parametrize(
    ("filled", "dims", "name", "is_found"),
    [
        ("constant", DIMS, BACKWARD, True),
        ("parameter", DIMS, BACKWARD, False),
        ("constant", (512, 256), BACKWARD, False),
        ("constant", DIMS, "jit(f)/neg", False),
    ],
    ids=["zeros", "an argument's number", "of no argument's form", "an initializer"],
)
def test_one_number_in_the_form_of_an_argument(
    filled: str, dims: Sequence[int], name: str, is_found: bool
) -> None:
    """In a program with a gradient; an initializer returns zeros on purpose."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="params[0]")
    number = hlo.parameter(path="number") if filled == "parameter" else hlo.add("constant")
    hlo.add("negate", w, dims=DIMS, name=name)
    output = hlo.add("copy", hlo.add("broadcast", number, dims=dims), dims=dims)
    leaf = Leaf("result[1]['frozen'][0]", tuple(dims), "float32")
    finding = zero_gradients.find(hlo.facts(outputs=(output,), call=CallInfo(outputs=(leaf,))))

    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.saves_bytes == MIB
        assert finding.title == ("Do not return result[1]['frozen']: 1 MiB filled with one number")


@pytest.mark.parametrize(("copies", "is_found"), [(3, True), (4, False)])
def test_a_few_copies_are_between_the_number_and_the_result(copies: int, is_found: bool) -> None:
    """The fourth step must reach the broadcast of the number."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="params[0]")
    hlo.add("negate", w, dims=DIMS, name=BACKWARD)
    output = hlo.add("broadcast", hlo.add("constant"), dims=DIMS)
    for _ in range(copies):
        output = hlo.add("copy", output, dims=DIMS)
    leaf = Leaf("result[1]['frozen'][0]", DIMS, "float32")
    finding = zero_gradients.find(hlo.facts(outputs=(output,), call=CallInfo(outputs=(leaf,))))

    assert (finding is not None) == is_found
    assert zero_gradients.MOST_MOVES == 4
