"""A matrix of all pairs that a factorization needs whole cannot be made in blocks of rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from hbmwatch._findings import classify
from hbmwatch._records.report import Finding
from tests.findings.cases import explain, slugs
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one


def pairs(*dims: int, reader: str = "", opcode: str = "custom-call") -> Finding:
    """The finding on all pairs of rows, and what reads them."""
    hlo, last = Hlo(), len(dims) - 1
    leading = tuple(range(last - 1))
    rows = [
        hlo.add(
            "broadcast",
            hlo.parameter(*dims[:-1]),
            dims=dims,
            dimensions=(*leading, axis),
        )
        for axis in (last - 1, last)
    ]
    made = hlo.add("multiply", *rows, dims=dims, name="jit(f)/mul")
    if reader:
        hlo.add(opcode, made, dims=dims, name=f"jit(f)/{reader}")
    (finding,) = classify.find(hlo.facts((made,)))
    return finding


@pytest.mark.parametrize(
    ("dims", "reader", "remedy"),
    [
        (
            (512, 512),
            "jit(cholesky)/cholesky",
            "A Cholesky factorization needs the matrix whole, so blocks of its rows do not help. "
            "Use fewer points, or a low-rank approximation (inducing points); to solve a linear "
            "system, jax.scipy.sparse.linalg.cg, with a function that computes the product of the "
            "matrix and a vector in blocks.",
        ),
        (
            (512, 512),
            "jit(svd)/svd",
            "A singular value decomposition needs the matrix whole, so blocks of its rows do not "
            "help. Use fewer points, or a low-rank approximation (inducing points).",
        ),
        (
            (64, 64, 64),
            "jit(eigh)/eigh",
            "An eigendecomposition needs the matrix whole, so blocks of its rows do not help. Go "
            "over fewer matrices at a time: jax.lax.map over the leading dimension.",
        ),
        (
            (512, 512),
            "exp",
            "Do not compute all pairs at once: go over blocks of rows with jax.lax.map(..., "
            "batch_size=...).",
        ),
        (
            (64, 64, 64),
            "exp",
            "Do not compute all pairs at once: go over a few entries of the leading dimension at a "
            "time with jax.lax.map(..., batch_size=...).",
        ),
    ],
    ids=["one matrix", "no other solver", "a batch", "element by element", "of each entry"],
)
def test_blocks_are_advised_only_where_they_can_be_used(
    dims: tuple[int, ...], reader: str, remedy: str
) -> None:
    """A batch of matrices has fewer of them at a time."""
    finding = pairs(*dims, reader=reader)

    assert (finding.slug, finding.remedy) == ("pairwise", remedy)


@pytest.mark.parametrize(
    ("reader", "opcode", "uncut"),
    [
        ("sort", "sort", "is not sorted"),
        ("jit(fft)/jit(fft)", "fusion", "is not transformed"),
        ("triangular_solve", "fusion", "no triangular solve mixes"),
    ],
)
def test_blocks_do_not_cut_an_axis_that_is_sorted(reader: str, opcode: str, uncut: str) -> None:
    """Nor one that a Fourier transform goes along."""
    assert pairs(512, 512, reader=reader, opcode=opcode).remedy == (
        "Do not compute all pairs at once: go over blocks with jax.lax.map(..., batch_size=...), "
        f"along an axis that {uncut}."
    )


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["a factor", "a product"])
def test_a_factorization_that_a_compiler_wrote_out(whole: bool) -> None:
    """The covariance of a Gaussian process; its product with a vector needs no matrix."""

    def step(x: Any, v: Any) -> Any:
        if not whole:
            return x @ (x.T @ v)
        kernel = jnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1)) + 1e-6 * jnp.eye(len(x))
        return jnp.linalg.cholesky(kernel) @ v

    findings = explain(on_one(step, array(4096, 2), array(4096)), 60).findings

    assert ("pairwise" in slugs(findings)) == whole
    if whole:
        assert findings[0].title.startswith("A matrix of all pairs is factorized whole at ")
        assert findings[0].remedy.startswith("A Cholesky factorization needs the matrix whole")
