"""The bits of one large draw."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from tests.findings.small import classified
from tests.hlo import F32, REPLICATED, U32, Hlo


def drawn(opcodes: list[str], name: str, dtype: int, output: bool, devices: bool) -> ProgramFacts:
    """A chain of operations on integers, from an iota on."""
    hlo = Hlo()
    made = hlo.add("iota", dims=(512, 512), dtype=U32)
    for opcode in opcodes:
        made = hlo.add(opcode, made, dims=(512, 512), dtype=dtype, name=name)
    kept: dict[str, Any] = {"outputs": (made,)} if output else {"live": (made,)}
    sharding: dict[str, Any] = {"spmd_output_sharding": REPLICATED} if devices else {}
    return hlo.facts(**kept, **sharding)


THREEFRY = ["shift-left", "shift-right-logical", "xor"]


@pytest.mark.parametrize(
    ("opcodes", "name", "dtype", "output", "devices", "slug"),
    [
        (THREEFRY, "", F32, False, False, "random-bits"),
        (THREEFRY[1:], "", F32, False, False, None),
        (["rng-bit-generator"], "", U32, False, False, "random-bits"),
        (["add"], "jit(f)/threefry2x32", U32, False, False, "random-bits"),
        (["add"], "jit(f)/threefry2x32", F32, False, False, None),
        (THREEFRY, "", F32, True, False, "random-bits"),
        (THREEFRY, "", F32, True, True, None),
    ],
    ids=["threefry", "not all of it", "rbg", "by name", "a result of it", "output", "on a mesh"],
)
def test_a_generator_is_known_by_its_operations_or_name(
    opcodes: list[str], name: str, dtype: int, output: bool, devices: bool, slug: str | None
) -> None:
    """On a mesh an output is left to the finding on replication."""
    assert classified(drawn(opcodes, name, dtype, output, devices)) == slug
