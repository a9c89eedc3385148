"""Small programs with one matrix product, for the findings on products."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from tests.hlo import Hlo

SOFTMAX = "jit(f)/jit(log_softmax)/sub"


def product(
    first: Sequence[int],
    second: Sequence[int],
    dims: Sequence[int],
    name: str = "jit(f)/dot_general",
    user: str = SOFTMAX,
    computed: bool = False,
    weighs: str = "",
    trains: bool = False,
    labels: int | None = None,
) -> ProgramFacts:
    """A product of two arguments, and one instruction that reads it.

    Args:
        computed: Whether the first factor is computed, and no argument.
        weighs: The op_name of another product, which multiplies values by this one; "" for none.
        trains: Whether the program has a backward pass, which does not read the product.
        labels: The element type of labels, if the program has them.
    """
    hlo = Hlo()
    x, y = hlo.parameter(*first, path="x"), hlo.parameter(*second, path="y")
    if labels is not None:
        hlo.parameter(first[0], dtype=labels, path="labels")
    x = hlo.add("sort", x, dims=first) if computed else x
    made = hlo.add("dot", x, y, dims=dims, name=name)
    hlo.add("subtract", made, made, dims=dims, name=user)
    if weighs:
        hlo.add("dot", made, x, dims=first, name=weighs)
    if trains:
        hlo.add("negate", dims=(1,), name="jit(f)/transpose(jvp())/neg")
    return hlo.facts((made,))
