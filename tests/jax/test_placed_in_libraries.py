"""Placed checkpoints in steps of libraries that the other tests do without."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._jax.placed_checkpoints import candidates, placed
from tests.jax.styles import PARAMS, Style, X, layer
from tests.jax.test_placed_checkpoints import checkpoints
from tests.jax.test_placed_values import largest_error

pytestmark = pytest.mark.clients


def haiku_style() -> Style:
    """A step of haiku whose blocks have a name, parameters and dropout of their own."""
    hk = pytest.importorskip("haiku")

    class Block(hk.Module):  # type: ignore[misc, name-defined]
        """A block."""

        def __call__(self, x: Any) -> Any:
            """The block."""
            h = hk.dropout(hk.next_rng_key(), 0.5, jnp.tanh(hk.Linear(16)(x)))
            return x + jnp.sin(hk.Linear(x.shape[-1])(h))

    def forward(x: Any) -> Any:
        for _ in range(3):
            x = Block()(x)
        return jnp.mean(x**2)

    model = hk.transform(forward)
    params = model.init(jax.random.key(0), X)
    return lambda p, k, x: jax.value_and_grad(model.apply)(p, k, x), (params, jax.random.key(1), X)


def diffrax_style(adjoint: str) -> Callable[[], Style]:
    """The gradient through a solver of diffrax."""

    def style() -> Style:
        diffrax = pytest.importorskip("diffrax")

        def field(t: Any, y: Any, params: Any) -> Any:
            for p in params:
                y = layer(y, p)
            return -y * 0.1

        def loss(params: Any, y: Any) -> Any:
            found = diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                diffrax.Tsit5(),
                0.0,
                1.0,
                0.1,
                y,
                args=params,
                adjoint=getattr(diffrax, adjoint)(),
                max_steps=16,
            )
            return jnp.mean(found.ys**2)

        return lambda p, y: jax.value_and_grad(loss)(p, y), (PARAMS, X)

    return style


def numpyro_style() -> Style:
    """A step of stochastic variational inference by numpyro."""
    numpyro = pytest.importorskip("numpyro")
    infer = importlib.import_module("numpyro.infer")
    normal = numpyro.distributions.Normal

    def model(x: Any) -> None:
        scale = numpyro.sample("scale", normal(0.0, 1.0))
        h = x
        for p in PARAMS:
            h = layer(h * scale, p)
        numpyro.sample("y", normal(h, 1.0), obs=jnp.ones_like(h))

    def guide(x: Any) -> None:
        mean = numpyro.param("mean", jnp.float32(0.1))
        numpyro.sample("scale", normal(mean, 0.5))

    svi = infer.SVI(model, guide, numpyro.optim.Adam(1e-2), infer.Trace_ELBO())
    state = svi.init(jax.random.key(0), X)
    return lambda state, x: svi.update(state, x), (state, X)


STYLES: dict[str, tuple[Callable[[], Style], str]] = {
    "haiku": (haiku_style, "Block.__call__"),
    "diffrax, adjoint by autodiff": (diffrax_style("DirectAdjoint"), "field"),
    "diffrax, recursive checkpoints": (diffrax_style("RecursiveCheckpointAdjoint"), ""),
    "numpyro": (numpyro_style, "layer"),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_placed_checkpoint_keeps_the_gradients(style: str) -> None:
    """The place is the user's function, and all outputs are the same.

    What the library differentiates by a rule of its own has no place.
    """
    make, name = STYLES[style]
    fun, args = make()
    step = jax.jit(fun)
    expected = step(*args)

    places = candidates(step, *args)

    assert [place.name for place in places[:1]] == ([name] if name else [])
    for place in places[:1]:
        changed = placed(step, place)
        assert checkpoints(changed, *args) > checkpoints(step, *args)
        assert largest_error(changed(*args), expected) <= 1e-5
