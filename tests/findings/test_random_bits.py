"""The bits of a random generator, beside what is drawn from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from tests.findings.cases import explain
from tests.findings.small import classified
from tests.hlo import F32, PRED, U32, Hlo
from tests.oom_programs.base import array, on_one

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


STEPS, CELLS = 200, 1 << 18
DRAWN_FIRST = "The random numbers of all steps are drawn before the loop"


def plain(key: Any, x: Any, s: Any) -> Any:
    """A walk whose shocks are drawn for all steps."""
    return jax.lax.scan(walk, x, jax.random.normal(key, (STEPS, CELLS)))[0]


def scaled(key: Any, x: Any, s: Any) -> Any:
    """Shocks that an argument scales, the same in each step."""
    return jax.lax.scan(walk, x, s * jax.random.uniform(key, (STEPS, CELLS)))[0]


def indexed(key: Any, x: Any, s: Any) -> Any:
    """Two draws that the loop indexes."""
    normal, uniform = jax.random.split(key)
    shocks = jax.random.normal(normal, (STEPS, CELLS))
    jumps = jax.random.uniform(uniform, (STEPS, CELLS))

    def step(t: Any, x: Any) -> Any:
        return jnp.where(jumps[t] > 0.9, walk(x, shocks[t])[0], x)

    return jax.lax.fori_loop(0, STEPS, step, x)


def used_again(key: Any, x: Any, s: Any) -> Any:
    """Draws that the program also sorts: all of them have to exist."""
    shocks = jax.random.normal(key, (STEPS, CELLS))
    return jax.lax.scan(walk, x, shocks)[0], jnp.sort(shocks, axis=0)[0]


def given(key: Any, x: Any, s: Any) -> Any:
    """Rows that differ by an argument: they are data."""
    rows = jnp.repeat(s.reshape(256, -1), STEPS * 256 // STEPS, axis=1)[:STEPS]
    return jax.lax.scan(walk, x, rows + jax.random.normal(key, (STEPS, CELLS)))[0]


def per_step(key: Any, x: Any, s: Any) -> Any:
    """The repaired program: each step draws its own, beside a large state."""

    def step(t: Any, x: Any) -> Any:
        return walk(x, jax.random.normal(jax.random.fold_in(key, t), x.shape))[0]

    return jax.lax.fori_loop(0, STEPS, step, x)


def walk(x: Any, shock: Any) -> tuple[Any, None]:
    """One step."""
    return 0.9 * x + 0.1 * shock * jnp.abs(x), None


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    ("program", "is_found"),
    [
        (plain, True),
        (scaled, True),
        (indexed, True),
        (used_again, False),
        (given, False),
        (per_step, False),
    ],
)
def test_draws_for_all_steps_of_a_loop_are_to_be_made_in_it(
    program: Callable[..., Any], is_found: bool
) -> None:
    """Only loops read them, one row per step; what they free is all but one row."""
    lowered = on_one(program, array(2, dtype=jnp.uint32), array(CELLS), array(CELLS))
    found = explain(lowered, 64 if is_found else 1).findings
    first = next((f for f in found if f.title.startswith(DRAWN_FIRST)), None)

    assert (first is not None) == is_found
    if first is not None:
        rows = len(first.buffers) * (STEPS - 1)
        assert (found[0], first.saves_bytes) == (first, rows * CELLS * 4)
        assert "jax.random.fold_in" in first.remedy
