"""The bits of a random generator, beside what is drawn from them."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from tests.findings.small import classified
from tests.hlo import F32, PRED, U32, Hlo

THREEFRY = ["shift-left", "shift-right-logical", "xor"]


def drawn(opcodes: list[str], name: str, dtype: int, output: bool, count: int = 1) -> ProgramFacts:
    """A chain of operations on integers, from an iota on."""
    hlo = Hlo()
    kept = []
    for _ in range(count):
        made = hlo.add("iota", dims=(512, 512), dtype=U32)
        for opcode in opcodes:
            made = hlo.add(opcode, made, dims=(512, 512), dtype=dtype, name=name)
        kept.append(made)
    where: dict[str, Any] = {"outputs": kept} if output else {"live": kept}
    return hlo.facts(**where)


@pytest.mark.parametrize(
    ("opcodes", "name", "dtype", "output", "slug"),
    [
        (THREEFRY, "", U32, False, "random-bits"),
        (THREEFRY[1:], "", U32, False, None),
        (["rng-bit-generator"], "", U32, False, "random-bits"),
        (["add"], "jit(f)/threefry2x32", U32, False, "random-bits"),
        (["add"], "jit(f)/threefry2x32", F32, False, None),
        (THREEFRY, "", F32, False, None),
        (THREEFRY, "jit(f)/jit(_bernoulli)/lt", PRED, False, None),
        (["rng-bit-generator"], "", U32, True, None),
    ],
    ids=[
        "threefry",
        "not all of it",
        "rbg",
        "by name",
        "a result of it",
        "what is drawn",
        "a dropout mask",
        "in the memory of the result",
    ],
)
def test_the_bits_are_found_and_what_is_drawn_is_not(
    opcodes: list[str], name: str, dtype: int, output: bool, slug: str | None
) -> None:
    """The program needs what it draws; it does not need the bits of all of it at once."""
    assert classified(drawn(opcodes, name, dtype, output)) == slug


def test_the_halves_of_the_bits_are_no_unrolled_loop() -> None:
    """Threefry makes the bits of two keys in two halves each: four equal buffers of one line."""
    facts = drawn(THREEFRY, "jit(f)/jit(_normal)/add", U32, output=False, count=4)

    assert classified(facts) == "random-bits"
