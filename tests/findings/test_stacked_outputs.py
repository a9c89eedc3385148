"""A result of a scan that is stacked over its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify, residuals
from hbmwatch._findings.stacked_outputs import is_loop_state
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from tests.findings.cases import explain
from tests.findings.small import classified, largest
from tests.hlo import Hlo, shape_of

STEPS = (8, 256, 256)
ALIAS = [{"parameter_number": 0, "output_shape_index": [0]}]


def scan(
    start: str = "broadcast", context: str = "jit(f)/while", reads: bool = False, **shape: Any
) -> tuple[Hlo, int]:
    """A loop that fills one buffer slice by slice, and the buffer's id.

    Args:
        reads: Whether the loop reads the argument, too.
    """
    hlo = Hlo()
    x = hlo.parameter(*STEPS, path="x")
    zero = hlo.add(start, x, dims=STEPS, **shape)
    begin = hlo.add("tuple", zero, *([x] if reads else []))
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=STEPS, tuple_index=0)
    named: dict[str, Any] = {"name": f"{context}/body/x"} if context else {}
    value = body.add("exponential", dims=(1, 256, 256), **named)
    update = body.add("dynamic-update-slice", whole, value, dims=STEPS, **named)
    kept = [body.add("get-tuple-element", carried, dims=STEPS, tuple_index=1)] if reads else []
    body.add("tuple", update, *kept)
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    return hlo, zero


@pytest.mark.parametrize(
    ("start", "context", "slug"),
    [
        ("broadcast", "jit(f)/while", "stacked-outputs"),
        ("copy", "jit(f)/while", None),
        ("broadcast", "jit(f)/transpose(jvp())/while", None),
    ],
    ids=["from zeros", "from an argument", "in a backward pass"],
)
def test_a_loop_that_fills_a_buffer_stacks_its_outputs(
    start: str, context: str, slug: str | None
) -> None:
    """Not where it updates an argument, or a gradient, in place."""
    hlo, buffer = scan(start, context)
    facts = hlo.facts((buffer,))

    assert classified(facts) == slug
    assert is_loop_state(largest(facts)) == (slug is None)


def test_an_argument_that_goes_in_as_xs_and_comes_out_as_ys_is_to_be_carried() -> None:
    """A key-value cache: "return only what is needed" does not apply."""
    titles = {}
    for reads in (False, True):
        hlo, buffer = scan(reads=reads)
        titles[reads] = [finding.title for finding in classify.find(hlo.facts((buffer,)))]

    assert titles == {
        False: ["A scan stacks its outputs over all steps"],
        True: ["A scan reads an argument as xs and returns its next value as ys, so both exist"],
    }


@pytest.mark.parametrize("donated", [False, True])
def test_what_is_donated_already_is_not_to_be_donated(donated: bool) -> None:
    """Carrying it is what is left."""
    hlo, buffer = scan(reads=True)
    donor: dict[str, Any] = {"entries": [{"parameter_number": 0}]} if donated else {}
    (finding,) = classify.find(hlo.facts((buffer,), buffer_donor=donor))

    assert finding.remedy.startswith("Carry the array through the scan")
    assert ("Donate" in finding.remedy) != donated


@pytest.mark.parametrize(
    ("order", "aliases", "slug"),
    [((0, 2, 1), ALIAS, "layout-copy"), ((2, 1, 0), ALIAS, None), ((0, 2, 1), [], None)],
    ids=["another", "the same", "not donated"],
)
def test_a_carried_argument_that_is_copied_into_another_layout(
    order: tuple[int, ...], aliases: list[dict[str, Any]], slug: str | None
) -> None:
    """The loop updates the copy in place, so that donation cannot save it.

    Without donation, the loop needs memory for its own state in any layout.
    """
    hlo, buffer = scan("copy", shape=shape_of(*STEPS, minor_to_major=order))
    facts = hlo.facts((buffer,), input_output_alias={"entries": aliases})

    assert classified(facts) == slug
    if slug is not None:
        (finding,) = classify.find(facts)
        assert "dimensions in the order (1, 2, 0) instead of (0, 1, 2)" in finding.evidence


@pytest.mark.parametrize(("returned", "slugs"), [(True, ["stacked-outputs"]), (False, [])])
def test_a_residual_in_the_memory_of_an_output_is_no_stacked_output(
    returned: bool, slugs: list[str]
) -> None:
    """XLA puts a stack that is freed early where an output is written later."""
    hlo, buffer = scan(context="jit(f)/jvp()/while")
    loss = hlo.add("negate", buffer, dims=(1,), name="jit(f)/transpose(jvp())/neg")
    proto = hlo.program(outputs=(buffer,)).proto
    if not returned:
        proto.hlo_module.computations[0].root_id = loss
    program = parse_program(proto.SerializeToString(), "jit_f(1)")
    facts = ProgramFacts(program, peak_summary(program))

    assert [live.op.kind for live in facts.live if live.loop_buffer is not None] == ["output"]
    assert [finding.slug for finding in classify.find(facts)] == slugs
    assert (residuals.find(facts) is not None) != returned


def test_the_evidence_says_how_many_steps() -> None:
    """Steps, and the bytes of each."""
    hlo, buffer = scan()
    (finding,) = classify.find(hlo.facts((buffer,)))

    assert "8 steps of 256 KiB" in finding.evidence


def collect(x: Any) -> Any:
    """A fori_loop that writes what its later steps compute into an array, as fori_collect does."""

    def body(i: Any, carry: Any) -> Any:
        value, kept = carry
        value = jnp.sin(value) * 1.1
        return value, kept.at[jnp.where(i >= 8, i - 8, 0)].set(value)

    return jax.lax.fori_loop(0, 40, body, (x, jnp.zeros((32, *x.shape))))  # the loop


def fill_ring(x: Any) -> Any:
    """A scan that writes its xs into a ring buffer that it carries; it has no ys."""

    def body(carry: Any, new: Any) -> tuple[Any, None]:
        ring, at = carry
        ring = jax.lax.dynamic_update_slice_in_dim(ring, new[None], at, axis=0)
        return (ring, (at + 1) % 32), None

    xs = jnp.sin(x) + jnp.zeros((8, *x.shape))
    return jax.lax.scan(body, (jnp.zeros((32, *x.shape)), 0), xs)[0]  # the loop


def stack(x: Any) -> Any:
    """A scan whose body itself updates an array, and which stacks its outputs."""

    def body(carry: Any, _: None) -> tuple[Any, Any]:
        carry = carry.at[0].set(jnp.sin(carry[1]) * 1.1)
        return carry, carry

    return jax.lax.scan(body, x, None, length=32)[1]  # the loop


@pytest.mark.parametrize(
    ("program", "says", "steps"),
    [
        (collect, "A loop carries a large buffer and writes parts of it", False),
        pytest.param(
            fill_ring,
            "A loop carries a large buffer and writes parts of it",
            False,
            marks=pytest.mark.skipif(
                jax.__version_info__ < (0, 7), reason="its op_name is that of a write of ys"
            ),
        ),
        (stack, "A scan stacks its outputs over all steps", True),
    ],
)
def test_what_a_loop_carries_is_no_stacked_output(program: Any, says: str, steps: bool) -> None:
    """Its length is not the number of steps, and the body does not return it as ys."""
    finding = explain(jax.jit(program).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))).findings[
        0
    ]
    start = program.__code__.co_firstlineno
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(n for n, text in enumerate(lines, 1) if n > start and text.endswith("# the loop"))

    assert finding.title == f"{says} at test_stacked_outputs.py:{line}"
    assert (" steps of " in finding.evidence) == steps
    assert ("second output of the body" in finding.remedy) == steps


@pytest.mark.parametrize(
    ("context", "slug"), [("jit(f)/while", "stacked-outputs"), ("", None)], ids=["user", "compiler"]
)
def test_a_loop_that_the_compiler_made_is_no_scan(context: str, slug: str | None) -> None:
    """For a large reshape: nothing in it has an op_name."""
    hlo, buffer = scan(context=context)
    assert classified(hlo.facts((buffer,))) == slug


@pytest.mark.parametrize(
    ("start", "slug"), [("broadcast", "stacked-outputs"), ("copy", None)], ids=["zeros", "argument"]
)
def test_a_loop_in_a_loop_starts_from_what_enters_the_outer_one(
    start: str, slug: str | None
) -> None:
    """As in the solvers of diffrax: the parameter of the outer body is no argument."""
    hlo = Hlo()
    zero = hlo.add(start, hlo.parameter(*STEPS, path="x"), dims=STEPS)
    begin = hlo.add("tuple", zero)
    shape = hlo.known[begin]["shape"]
    outer, inner = hlo.inner(), hlo.inner()
    carried = inner.add("parameter", shape=shape)
    whole = inner.add("get-tuple-element", carried, dims=STEPS, tuple_index=0)
    value = inner.add("exponential", dims=(1, 256, 256), name="jit(f)/while/body/while/body/exp")
    update = inner.add("dynamic-update-slice", whole, value, dims=STEPS)
    inner.add("tuple", update)
    entry = outer.add("parameter", shape=shape)
    outer_whole = outer.add("get-tuple-element", entry, dims=STEPS, tuple_index=0)
    loop = outer.add("while", outer.add("tuple", outer_whole), shape=shape, calls=inner)
    outer.add("tuple", outer.add("get-tuple-element", loop, dims=STEPS, tuple_index=0))
    hlo.add("while", begin, shape=shape, calls=outer)

    assert classified(hlo.facts((update,))) == slug


def test_what_an_inner_scan_makes_is_stacked_at_the_line_of_the_outer_one() -> None:
    """The value has the line of the inner scan, whose outputs may be needed."""

    def one(carry: Any, _: None) -> tuple[Any, Any]:
        return jnp.sin(carry) * 1.1, jnp.cos(carry)

    def update(carry: Any, _: None) -> tuple[Any, Any]:
        return jax.lax.scan(one, carry, None, length=16)

    def train(carry: Any) -> Any:
        return jax.lax.scan(update, carry, None, length=32)[1]  # the outer scan

    finding = explain(jax.jit(train).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))).findings[0]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    outer = next(n for n, line in enumerate(lines, 1) if line.endswith("# the outer scan"))

    assert finding.title == (
        f"A scan stacks its outputs over all steps at test_stacked_outputs.py:{outer}"
    )


def test_the_title_has_the_line_of_the_scan_and_the_evidence_that_of_the_value() -> None:
    """What is stacked may be computed by another function."""

    def wave(x: Any) -> Any:
        return jnp.sin(x) * 1.1  # the value

    def step(carry: Any, _: None) -> tuple[Any, Any]:
        new = wave(carry)
        return new, new

    def run(carry: Any) -> Any:
        return jax.lax.scan(step, carry, None, length=32)[1]  # the scan

    finding = explain(jax.jit(run).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))).findings[0]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    scan, value = (
        next(n for n, line in enumerate(lines, 1) if line.endswith(f"# the {what}"))
        for what in ("scan", "value")
    )

    assert finding.title == (
        f"A scan stacks its outputs over all steps at test_stacked_outputs.py:{scan}"
    )
    assert finding.evidence.endswith(f", computed at test_stacked_outputs.py:{value}.")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("jit(f)/while", "stacked-outputs"),
        ("jit(f)/while/body/closed_call/triangular_solve", None),
        ("jit(f)/while/body/sort", None),
    ],
    ids=["a scan", "a triangular solve", "a sort"],
)
def test_a_loop_that_the_compiler_made_in_a_scan_is_no_scan(name: str, slug: str | None) -> None:
    """Its op_name ends in the operation that it was made from."""
    hlo, zero = scan()
    loop = hlo.instructions[-1]
    loop["metadata"] = {"op_name": name}

    assert classified(hlo.facts((zero,))) == slug
