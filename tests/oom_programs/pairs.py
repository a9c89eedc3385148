"""Programs with all pairs of something: distances, kernels, Jacobians."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.oom_programs.base import array, case, on_one


@case("pairwise", "jax-ml/jax#1918, netket/netket#711")
def pairwise_distances(fault: bool) -> Any:
    """All differences of all pairs of rows are made before they are summed."""

    def gram(x: Any, y: Any) -> Any:
        if fault:
            difference = x[:, None, :] - y[None, :, :]
            ordered = jnp.sort(jnp.abs(difference), axis=-1)
            return jnp.exp(-ordered[..., ::2].sum(-1))
        return jnp.exp(-((x**2).sum(-1)[:, None] - 2 * x @ y.T + (y**2).sum(-1)[None]))

    return on_one(gram, array(4096, 512), array(4096, 512))


@case("pairwise", "jax-ml/jax#3306: squared differences under two vmaps")
def vmapped_kernel(fault: bool) -> Any:
    """A kernel of two points is vmapped over both, and its inside is a buffer of all pairs."""

    def kernel(a: Any, b: Any) -> Any:
        return jnp.sort((a - b) ** 2)[:16].sum()

    def gram(x: Any, y: Any) -> Any:
        rows: Any = jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(y))
        if fault:
            return rows(x)
        return jax.lax.map(lambda a: jax.vmap(lambda b: kernel(a, b))(y), x)

    return on_one(gram, array(2048, 1024), array(4096, 1024))


@case("pairwise", "jax-ml/jax#23548: all grid points against all centres")
def grid_against_points(fault: bool) -> Any:
    """A density is summed over the differences of a grid and many centres."""

    def density(grid: Any, centres: Any) -> Any:
        def one(c: Any) -> Any:
            return jnp.exp(-((grid - c) ** 2).sum(-1))

        if fault:
            return jnp.median(jax.vmap(one)(centres), axis=0)
        return jax.lax.map(one, centres).mean(0)

    return on_one(density, array(64, 64, 128, 3), array(16384, 3))


@case("pairwise", "ott-jax/ott#20: the cost of all pairs of points, and a softmax over it")
def transport_cost(fault: bool) -> Any:
    """Optimal transport keeps the matrix of costs; the fix goes over blocks of rows."""

    def potential(x: Any, y: Any, f: Any, g: Any) -> Any:
        def one(a: Any, from_f: Any) -> Any:
            def cost(b: Any) -> Any:
                return jnp.sqrt((a**2).sum() + (b**2).sum() - 2 * jnp.vdot(a, b))

            return jax.nn.logsumexp(from_f + g - jax.vmap(cost)(y))

        if fault:
            return jax.vmap(one)(x, f)
        return jax.lax.map(lambda rows: one(*rows), (x, f), batch_size=64)

    points = array(65536, 64)
    return on_one(potential, points, points, array(65536), array(65536))


@case("pairwise", "google/neural-tangents#28: a kernel of all pairs of examples")
def tangent_kernel(fault: bool) -> Any:
    """A kernel is a product of all pairs; its largest value is taken too."""

    def kernel(x: Any, y: Any, alpha: Any) -> Any:
        values = jnp.arccos(jnp.clip(x @ y.T, -1, 1))
        return values @ alpha, jnp.max(jnp.abs(values), 1)

    def blocks(x: Any, y: Any, alpha: Any) -> Any:
        return jax.lax.map(lambda row: kernel(row[None], y, alpha), x)

    given = array(100_000, 94), array(250_000, 94), array(250_000, 8)
    return on_one(kernel if fault else blocks, *given)


@case("jacobian", "jax-ml/jax#215, PlasmaControl/DESC#826")
def reverse_jacobian(fault: bool) -> Any:
    """A tall Jacobian by reverse mode carries a basis of the outputs through the function."""

    def model(x: Any, uvw: Any) -> Any:
        phase = jnp.tanh(uvw @ x)
        return jnp.sin(phase * phase) @ jnp.ones((16,))

    def solve(x: Any, uvw: Any) -> Any:
        wide = x[:, None] * jnp.ones((1, 16))
        if fault:
            return jax.jacrev(model)(wide, uvw)
        return jax.jvp(lambda w: model(w, uvw), (wide,), (wide,))[1]

    return on_one(solve, array(32), array(81920, 32))


@case("jacobian", "jax-ml/jax#719: forward mode over ten million inputs")
def forward_jacobian(fault: bool) -> Any:
    """A wide Jacobian by forward mode carries a basis of the inputs."""

    def residual(x: Any, a: Any) -> Any:
        h = jnp.tanh(a @ x)
        return (h * h).reshape(8, -1).sum(-1)

    def solve(x: Any, a: Any) -> Any:
        return (jax.jacfwd(residual) if fault else jax.jacrev(residual))(x, a)

    return on_one(solve, array(32768), array(65536, 32768, dtype=jnp.bfloat16))


@case("jacobian", "jax-ml/jax#787: the Hessian of a pair energy")
def hessian(fault: bool) -> Any:
    """The Hessian of a sum over pairs, by forward over reverse mode."""

    def energy(conf: Any) -> Any:
        r = conf[None] - conf[:, None]
        return jnp.sqrt((r**2).sum(-1) + 1e-6).sum()

    def newton(conf: Any, v: Any) -> Any:
        if fault:
            return jnp.einsum("iajb,jb->ia", jax.hessian(energy)(conf), v)
        return jax.jvp(jax.grad(energy), (conf,), (v,))[1]

    return on_one(newton, array(1536, 3), array(1536, 3))


@case("pairwise", "thomaspinder/GPJax#389: the covariance of all test points, for its diagonal")
def full_covariance(fault: bool) -> Any:
    """The variance of each point is read from the product of a matrix and its transpose."""

    def variance(weights: Any, noise: Any) -> Any:
        if fault:
            return jnp.sort(jnp.diagonal(jnp.exp(-(weights.T @ weights))) + noise)
        return jnp.sort(jnp.exp(-(weights**2).sum(0)) + noise)

    return on_one(variance, array(2048, 81920), array(81920))


@case("pairwise", "every contrastive loss: the similarity of each image and each text")
def contrastive_loss(fault: bool) -> Any:
    """A softmax over all pairs is no attention; the fix goes over blocks of rows."""

    def loss(params: Any, images: Any, texts: Any) -> Any:
        a, b = images @ params["images"], texts @ params["texts"]

        def block(rows: Any) -> Any:
            features, labels = rows
            logits = jax.nn.log_softmax(features @ b.T)
            return jnp.take_along_axis(logits, labels[:, None], axis=1).sum()

        labels = jnp.arange(len(a))
        if fault:
            return -block((a, labels))
        blocks = (a.reshape(128, -1, a.shape[1]), labels.reshape(128, -1))
        return -jax.lax.map(jax.checkpoint(block), blocks).sum()

    params = {"images": array(1024, 512), "texts": array(1024, 512)}
    return on_one(jax.grad(loss), params, array(65536, 1024), array(65536, 1024))


@case("pairwise", "jax-ml/jax#5733: an outer product that is the result")
def outer_product(fault: bool) -> Any:
    """The outer product of two vectors is returned; the fix returns its product with a vector."""

    def step(x: Any, y: Any, v: Any) -> Any:
        return jnp.outer(x, y) if fault else x * (y @ v)

    return on_one(step, array(65536), array(81920), array(81920))
