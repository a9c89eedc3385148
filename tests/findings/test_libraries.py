"""What a library offers, in programs of the real libraries; those that are not installed skip."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import callback
from hbmwatch._findings.libraries import OFFERS
from tests.findings.cases import explain

ROWS, WIDTH, LAYERS = 1 << 16, 512, 6
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
KEY = jax.eval_shape(jax.random.key, 0)


def equinox() -> Any:
    """The gradient of an MLP for each row."""
    eqx = pytest.importorskip("equinox")
    model = eqx.filter_eval_shape(
        lambda key: eqx.nn.MLP(WIDTH, WIDTH, WIDTH, LAYERS, jnp.tanh, key=key), jax.random.key(0)
    )
    arrays, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def loss(arrays: Any, x: Any) -> Any:
        return (jax.vmap(eqx.combine(arrays, static))(x) ** 2).sum()

    return jax.jit(jax.grad(loss)).lower(arrays, X)


def linen() -> Any:
    """The gradient of dense layers."""
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([layer for _ in range(LAYERS) for layer in (nn.Dense(WIDTH), jnp.tanh)])
    params = jax.eval_shape(model.init, KEY, X)
    return jax.jit(jax.grad(lambda p, x: (model.apply(p, x) ** 2).sum())).lower(params, X)


def nnx() -> Any:
    """The gradient of linear layers."""
    flax_nnx = pytest.importorskip("flax.nnx")

    def make() -> Any:
        return flax_nnx.Sequential(
            *(
                layer
                for _ in range(LAYERS)
                for layer in (flax_nnx.Linear(WIDTH, WIDTH, rngs=flax_nnx.Rngs(0)), jnp.tanh)
            )
        )

    graph, state = flax_nnx.split(flax_nnx.eval_shape(make))

    def loss(state: Any, x: Any) -> Any:
        return (flax_nnx.merge(graph, state)(x) ** 2).sum()

    return jax.jit(jax.grad(loss)).lower(state, X)


def keras() -> Any:
    """The gradient of dense layers, as fit takes it."""
    os.environ["KERAS_BACKEND"] = "jax"
    library = pytest.importorskip("keras")
    dense = [library.layers.Dense(WIDTH, "tanh", name=f"dense_{n}") for n in range(LAYERS)]
    model = library.Sequential([library.Input((WIDTH,)), *dense])
    weights = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.trainable_variables]

    def loss(weights: Any, x: Any) -> Any:
        return (model.stateless_call(weights, [], x)[0] ** 2).sum()

    return jax.jit(jax.grad(loss)).lower(weights, X)


def diffrax_gradient() -> Any:
    """The gradient of an initial state, with as many checkpoints as steps."""
    diffrax = pytest.importorskip("diffrax")

    def loss(y: Any) -> Any:
        adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints=64)
        term = diffrax.ODETerm(lambda t, y, args: -jnp.sin(y) * y)
        solver, controller = diffrax.Euler(), diffrax.ConstantStepSize()
        solution = diffrax.diffeqsolve(
            term, solver, 0, 1, 1 / 64, y, adjoint=adjoint, stepsize_controller=controller
        )
        return (solution.ys**2).sum()

    return jax.jit(jax.grad(loss)).lower(X)


def diffrax_steps(checked: bool = False) -> Any:
    """A solution that is saved at many times, and may be checked."""
    diffrax = pytest.importorskip("diffrax")

    def solve(y: Any) -> Any:
        save = diffrax.SaveAt(ts=jnp.linspace(0, 1, 64))
        term = diffrax.ODETerm(lambda t, y, args: -y)
        return diffrax.diffeqsolve(
            term, diffrax.Euler(), 0, 1, 1 / 64, y, saveat=save, throw=checked
        ).ys

    return jax.jit(solve).lower(X)


def diffrax_checked_steps() -> Any:
    """Such a solution with the check of its result, which is the default."""
    return diffrax_steps(checked=True)


def numpyro_draws() -> Any:
    """The predictive of all draws in parallel."""
    numpyro = pytest.importorskip("numpyro")

    def model(x: Any) -> None:
        w = numpyro.sample("w", numpyro.distributions.Normal(jnp.zeros(WIDTH), 1).to_event(1))
        numpyro.sample("y", numpyro.distributions.Normal(jnp.tanh(x * w), 1).to_event(2))

    def predict(key: Any, w: Any, x: Any) -> Any:
        drawn = numpyro.infer.Predictive(model, {"w": w}, parallel=True)(key, x)
        return jnp.sort(drawn["y"], axis=1)[:, 5]

    rows = jax.ShapeDtypeStruct((1 << 12, WIDTH), jnp.float32)
    return jax.jit(predict).lower(KEY, jax.ShapeDtypeStruct((64, WIDTH), jnp.float32), rows)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7), reason="with the CPU compiler of jax 0.6 other buffers are kept"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "slug", "offer"),
    [
        (equinox, "residuals", "equinox.filter_checkpoint around a function of several layers"),
        (linen, "residuals", "nn.remat(Group)"),
        (nnx, "residuals", "nnx.remat around a function of several layers"),
        (keras, "residuals", "keras.RematScope"),
        (diffrax_gradient, "residuals", "RecursiveCheckpointAdjoint(checkpoints=...)"),
        (diffrax_steps, "stacked-outputs", "SaveAt(t1=True)"),
        (diffrax_checked_steps, "callback", "throw=False"),
        (numpyro_draws, "samples", "Predictive(..., parallel=False)"),
    ],
)
def test_the_remedy_of_a_library_is_offered(
    build: Callable[[], Any], slug: str, offer: str
) -> None:
    """The frames of the buffers are the library's own."""
    found = {finding.slug: finding.remedy for finding in explain(build()).findings}

    texts = [row.text for row in OFFERS] + [callback.CHECK_ADVICE.remedy]
    assert any(offer in text for text in texts)
    assert offer in found.get(slug, f"not found: {sorted(found)}")
