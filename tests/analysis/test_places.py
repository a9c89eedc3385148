"""Whose line an instruction is from, where JAX has traced a helper for another call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.graph import Graph
from hbmwatch._analysis.places import stack_of
from hbmwatch._xla.program import Program, parse_program
from tests.findings.cases import compile_program
from tests.hlo import Hlo

SHAPE = jax.ShapeDtypeStruct((5, 7), jnp.float32)


def first(xs: Any) -> Any:
    """A scan."""
    return jax.lax.scan(lambda c, x: (jnp.sin(c) + x, c), xs[0], xs)


def second(xs: Any) -> Any:
    """Another one, of the same shapes."""
    return jax.lax.scan(lambda c, x: (jnp.cos(c) * x, c), xs[0], xs)


def compiled(function: Callable[..., Any]) -> Program:
    """The program of a function, compiled for the CPU."""
    proto = compile_program(jax.jit(function).lower(SHAPE), None).hlo_proto
    return parse_program(proto, "jit_f(1)")


@pytest.mark.skipif(jax.__version_info__ < (0, 7), reason="this jax reads slices without a helper")
@pytest.mark.parametrize(
    "function", [first, second, lambda xs: (first(xs), second(xs))], ids=["first", "second", "both"]
)
def test_what_a_scan_does_in_each_step_is_from_that_scan(function: Callable[..., Any]) -> None:
    """JAX traces the reading of a slice once: XLA's own stack begins in the first scan."""
    compiled(first)  # so that the helper is traced for it, whichever test runs first
    program = compiled(function)
    graph = Graph(program)
    loops = [graph.program.stack(loop) for loop in graph.loops]
    found = [
        instruction
        for computation in program.computations.values()
        for instruction in program.inside(computation)
        if "index_in_dim)" in instruction.metadata.op_name
    ]

    assert found
    for instruction in found:
        assert stack_of(graph, instruction) in loops
        names = {frame.function for frame in stack_of(graph, instruction)}
        assert function.__name__ == "<lambda>" or {"first", "second"} & names == {function.__name__}


@pytest.mark.parametrize(("function", "count"), [("main.<locals>.f", 1), ("main", 0)])
def test_a_stack_outside_of_the_step_is_of_no_line(function: str, count: int) -> None:
    """Where other stacks have the step, one without it is where the step was called."""
    hlo = Hlo()
    hlo.add("iota", dims=(4,), metadata={"op_name": "jit(f)/iota", "stack_frame_id": 1})
    names = ["main.<locals>.f", "main"]
    frames = {
        "file_names": ["train.py"],
        "function_names": names,
        "file_locations": [
            {"file_name_id": 1, "function_name_id": names.index(function) + 1, "line": 3}
        ],
        "stack_frames": [{"file_location_id": 1}],
    }
    program = hlo.facts(stack_frame_index=frames).program
    (made,) = program.scheduled

    assert len(stack_of(Graph(program), made)) == count
