"""A Jacobian or Hessian, against a batch of gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import classify
from tests.findings.cases import explain
from tests.findings.small import classified
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(
    ("names", "slug"),
    [
        (["jit(f)/vmap(jvp())/mul"], "jacobian"),
        (["jit(f)/vmap(transpose(jvp()))/mul"], "jacobian"),
        (["jit(f)/vmap(jvp(jvp()))/mul", "jit(f)/vmap(transpose(jvp()))/mul"], "jacobian"),
        (["jit(f)/vmap(transpose(jvp()))/mul", "jit(f)/vmap(jvp())/mul"], "samples"),
        (["jit(f)/jvp(vmap())/mul"], None),
    ],
    ids=["forward mode", "reverse mode", "hessian", "gradient of each sample", "batch in a loss"],
)
def test_the_transformations_in_the_names_tell(names: list[str], slug: str | None) -> None:
    """One of forward and reverse mode alone is mapped, or one inside the other."""
    hlo = Hlo()
    x = hlo.parameter(512)
    made = hlo.add("broadcast", x, dims=(512, 512), name=names[0])
    for name in names[1:]:
        hlo.add("negate", x, dims=(512,), name=name)

    assert classified(hlo.facts((made,))) == slug


def test_the_basis_itself_belongs_to_the_jacobian() -> None:
    """A square identity matrix in a program of forward mode."""
    hlo = Hlo()
    basis = hlo.add("iota", dims=(512, 512), name="jit(f)/eq")
    hlo.add("negate", basis, dims=(512, 512), name="jit(f)/vmap(jvp())/mul")

    assert classified(hlo.facts((basis,))) == "jacobian"


def test_a_basis_of_arrays_belongs_to_the_jacobian() -> None:
    """An identity matrix whose columns have the shape of an argument."""
    hlo = Hlo()
    dims = (512, 2, 256)
    spread = hlo.add("broadcast", hlo.add("iota", dims=(512,)), dims=dims, name="jit(f)/iota")
    columns = hlo.add("broadcast", hlo.add("iota", dims=(2, 256)), dims=dims, name="jit(f)/iota")
    equal = hlo.add("compare", spread, columns, dims=dims, name="jit(f)/eq")
    basis = hlo.add("convert", equal, dims=dims, name="jit(f)/convert_element_type")
    hlo.add("negate", basis, dims=dims, name="jit(f)/vmap(jvp())/mul")

    assert classified(hlo.facts((basis,))) == "jacobian"


@pytest.mark.parametrize("around", ["", "jvp"], ids=["alone", "in a loss"])
def test_chunks_in_a_loss_need_a_checkpoint(around: str) -> None:
    """The gradient of a loss that has a Jacobian inside keeps what all chunks make."""
    hlo = Hlo()
    name = "jit(f)/jvp(vmap(vmap(jvp(jvp()))))/mul" if around else "jit(f)/vmap(jvp())/mul"
    x = hlo.parameter(512)
    made = hlo.add("broadcast", x, dims=(512, 512), name=name)
    hlo.add("negate", x, dims=(512,), name="jit(f)/vmap(jvp(jvp()))/mul")
    (finding,) = classify.find(hlo.facts((made,)))

    assert finding.slug == "jacobian"
    assert ("jax.checkpoint around each chunk" in finding.remedy) == bool(around)
    assert ("fewer points at a time" in finding.remedy) == bool(around)


@pytest.mark.tpu
@pytest.mark.slow
def test_the_title_has_the_line_that_asks_for_the_jacobian_and_that_of_a_tangent() -> None:
    """The frames of a tangent have both; the basis is made at the former."""

    def field(c: Any, grid: Any) -> Any:
        phase = jnp.sin(grid @ c.reshape(4, -1))
        return (phase * jnp.cos(phase)).sum(-1)

    def step(c: Any, grid: Any) -> Any:
        matrix = jax.jacfwd(field)(c, grid)
        return matrix.T @ matrix

    findings = explain(on_one(step, array(512), array(65536, 4)), 60).findings
    (found,) = [finding for finding in findings if finding.slug == "jacobian"]
    called, first = (f.__code__.co_firstlineno for f in (step, field))

    assert found.title in [
        "A Jacobian (or Hessian) is computed for its whole basis at once at "
        f"test_jacobian.py:{called + 1} (most of its bytes are made at test_jacobian.py:{line})"
        for line in (first + 1, first + 2)
    ]
