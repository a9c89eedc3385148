"""The partial results of an unrolled loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import unrolled_loop
from hbmwatch._xla.peak import peak_summary
from tests import programs
from tests.findings.cases import explain, slugs
from tests.findings.small import classified, found, largest
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one

DIMS = (512, 512)


def steps(
    count: int, name: str = "jit(f)/sort", opcode: str = "reduce-window", like: int = 0
) -> ProgramFacts:
    """Equal temporaries, and some arguments of the same shape."""
    hlo = Hlo()
    x = hlo.parameter(512)
    for _ in range(like):
        hlo.parameter(*DIMS)
    return hlo.facts([hlo.add(opcode, x, dims=DIMS, name=name) for _ in range(count)])


@pytest.mark.parametrize(("count", "slug"), [(3, None), (4, "unrolled-loop")])
def test_four_equal_results_are_steps_of_a_loop(count: int, slug: str | None) -> None:
    """Three may be q, k and v."""
    assert unrolled_loop.LEAST_STEPS == 4
    assert classified(steps(count)) == slug


@pytest.mark.parametrize(("count", "slug"), [(4, None), (5, "unrolled-loop")])
def test_two_results_for_each_argument_are_gradients(count: int, slug: str | None) -> None:
    """Two arguments of this shape may have two gradients and two updates."""
    assert unrolled_loop.MOST_PER_ARGUMENT == 2
    assert classified(steps(count, like=2)) == slug


@pytest.mark.parametrize(
    ("name", "opcode"),
    [("jit(f)/jvp()/sort", "reduce-window"), ("jit(f)/psum", "all-reduce"), ("", "slice")],
    ids=["of a forward pass", "exchanged", "cut out"],
)
def test_equal_buffers_of_other_reasons_are_no_loop(name: str, opcode: str) -> None:
    """Residuals, what devices exchange, and parts of another array."""
    assert not unrolled_loop.is_partial_result(largest(steps(4, name, opcode)))


@pytest.mark.parametrize(
    ("reader", "slug"),
    [("jit(f)/jit(fft)", None), ("jit(f)/add", "unrolled-loop")],
    ids=["the same transform", "a sum of transforms"],
)
def test_parts_of_one_transform_are_no_loop(reader: str, slug: str | None) -> None:
    """The compiler writes an FFT out in several equal buffers, which it reads itself."""
    hlo = Hlo()
    x = hlo.parameter(512)
    made = [hlo.add("reduce-window", x, dims=DIMS, name="jit(f)/jit(fft)") for _ in range(4)]
    hlo.add("add", *made, dims=DIMS, name=reader)

    assert classified(hlo.facts(made)) == slug


def test_all_results_but_one_are_freed() -> None:
    """A loop needs the result of one step at a time."""
    hlo = Hlo()
    x = hlo.parameter(512)
    facts = hlo.facts([hlo.add("sort", x, dims=DIMS, name="jit(f)/sort") for _ in range(4)])

    assert unrolled_loop.ADVICE.freed_bytes(largest(facts).buffers) == 3 * 2**20


@pytest.mark.tpu
def test_a_gather_in_pieces_is_no_loop() -> None:
    """The compiler casts an argument, and cuts it up for one gather: no loop is unrolled."""

    def project(x: Any, w: Any, index: Any) -> Any:
        return jnp.einsum("id,ic->dc", x.T[index], w)

    given = [array(131072, 16384), array(4096, 16), array(4096, dtype=jnp.int32)]
    assert slugs(explain(on_one(project, *given)).findings) == ["aggregate"]


def test_a_loop_of_the_compilers_is_no_unrolled_one() -> None:
    """Equal buffers in the body of a while loop (the CPU's random bits) are not unrolled steps."""
    program = programs.compiled("seed", "cpu").program
    assert found(ProgramFacts(program, peak_summary(program)))[0] == "random-bits"
