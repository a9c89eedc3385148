"""A Jacobian or Hessian, against a batch of gradients."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify
from tests.findings.small import classified
from tests.hlo import Hlo


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
