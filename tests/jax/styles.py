"""Ways to differentiate, each as a step that is called with small arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax import linen, nnx
from jax import grad, hessian, jacrev, linearize, value_and_grad, vjp

Style = tuple[Callable[..., Any], tuple[Any, ...]]

WIDTH = 8


def array(*shape: int) -> Any:
    """Small numbers, always the same."""
    return jnp.asarray(np.random.RandomState(sum(shape)).randn(*shape) * 0.3, jnp.float32)


PARAMS = [{"a": array(WIDTH, 16), "b": array(16, WIDTH)} for _ in range(3)]
X = array(32, WIDTH)


def layer(h: Any, p: Any) -> Any:
    """One of several layers: the place that a person would choose."""
    return h + jnp.tanh(jax.nn.gelu(h @ p["a"]) @ p["b"])


def loss(params: Any, x: Any) -> Any:
    """Three layers."""
    for p in params:
        x = layer(x, p)
    return jnp.mean(x**2)


@jax.custom_vjp
def doubled(x: Any) -> Any:
    """The sine, with a gradient that is twice the true one and must be kept."""
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2.0 * g * jnp.cos(x),))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    """The sine, with three times its derivative."""
    return jnp.sin(x)


tripled.defjvps(lambda t, _, x: 3.0 * t * jnp.cos(x))


def custom(rule: Any) -> Any:
    """A loss whose layers have a rule of their own."""

    def custom_layer(h: Any, p: Any) -> Any:
        return rule(layer(h, p)) * 1.5

    def custom_loss(params: Any, x: Any) -> Any:
        for p in params:
            x = custom_layer(x, p)
        return jnp.mean(x**2)

    return lambda params, x: value_and_grad(custom_loss)(params, x)


def dropout_layer(h: Any, p: Any, key: Any) -> Any:
    """A layer with random numbers."""
    h = layer(h, p)
    return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h * jnp.sin(h), 0.0)


def dropout_loss(params: Any, x: Any, key: Any) -> Any:
    """Layers with keys of their own, and auxiliary values."""
    for p, k in zip(params, jax.random.split(key, len(params))):
        x = dropout_layer(x, p, k)
    return jnp.mean(x**2), {"sum": x.sum(), "name": 3, "rows": x[0]}


def scanned_loss(params: Any, x: Any) -> Any:
    """The layers by lax.scan."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return jnp.mean(jax.lax.scan(lambda h, p: (layer(h, p), None), x, stacked)[0] ** 2)


def printed_layer(h: Any, p: Any) -> Any:
    """A layer that prints."""
    jax.debug.callback(lambda _: None, h[0, 0])
    return layer(h, p)


def printed_loss(params: Any, x: Any) -> Any:
    """Layers that print."""
    for p in params:
        x = printed_layer(x, p)
    return jnp.mean(x**2)


def branches_loss(params: Any, x: Any) -> Any:
    """Layers in a branch of a cond, and a loop."""
    x = jax.lax.cond(x[0, 0] > 5.0, lambda h: h, lambda h: run(params, h), x)
    return jax.lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h), x).sum()


def run(params: Any, x: Any) -> Any:
    """All layers."""
    for p in params:
        x = layer(x, p)
    return x


def mixed_loss(params: Any, x: Any) -> Any:
    """In bfloat16, but for the mean."""
    params, x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, x))
    return jnp.mean(run(params, x).astype(jnp.float32) ** 2)


OPTIMIZER = optax.adam(1e-3)


def adam_step(params: Any, state: Any, x: Any) -> Any:
    """A step of optax."""
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value, grads


class LinenBlock(linen.Module):
    """A block with batch norm and dropout."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """The block."""
        h = linen.Dense(16)(x)
        h = linen.BatchNorm(use_running_average=False)(h)
        h = linen.Dropout(0.5, deterministic=False)(jnp.tanh(linen.gelu(h)))
        return x + linen.Dense(WIDTH)(h)


class LinenModel(linen.Module):
    """Three blocks."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """The loss."""
        for _ in range(3):
            x = LinenBlock()(x)
        return jnp.mean(x**2)


def linen_style() -> Style:
    """A step of flax.linen that updates its batch statistics."""
    model = LinenModel()
    variables = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)

    def step(variables: Any, x: Any, key: Any) -> Any:
        def of(params: Any) -> Any:
            given = {**variables, "params": params}
            return model.apply(given, x, rngs={"dropout": key}, mutable=["batch_stats"])

        return jax.value_and_grad(of, has_aux=True)(variables["params"])

    return step, (variables, X, jax.random.key(5))


class EquinoxBlock(eqx.Module):
    """A block, with a function among its fields."""

    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: Callable[..., Any]

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.up = eqx.nn.Linear(WIDTH, 16, key=one)
        self.down = eqx.nn.Linear(16, WIDTH, key=two)
        self.activation = jax.nn.gelu

    def __call__(self, x: Any) -> Any:
        """The block, for one row."""
        return x + jnp.tanh(self.down(self.activation(self.up(x))))


def equinox_style() -> Style:
    """A step of equinox, by filter_value_and_grad."""
    blocks = [EquinoxBlock(jax.random.key(i)) for i in range(3)]
    arrays, static = eqx.partition(blocks, eqx.is_array)
    gradient: Any = eqx.filter_value_and_grad

    def model_loss(blocks: Any, x: Any) -> Any:
        for block in blocks:
            x = jax.vmap(block)(x)
        return jnp.mean(x**2)

    def step(arrays: Any, x: Any) -> Any:
        value, grads = gradient(model_loss)(eqx.combine(arrays, static), x)
        return value, eqx.filter(grads, eqx.is_array)

    return step, (arrays, X)


class NnxBlock(nnx.Module):
    """A block with batch norm and dropout, which change its state."""

    def __init__(self, rngs: Any) -> None:
        self.up = nnx.Linear(WIDTH, 16, rngs=rngs)
        self.down = nnx.Linear(16, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """The block."""
        h = jnp.tanh(jax.nn.gelu(self.norm(self.up(x))))
        return x + self.down(self.dropout(h))


class NnxModel(nnx.Module):
    """Three blocks, one after another."""

    def __init__(self, rngs: Any) -> None:
        self.first, self.second, self.third = (NnxBlock(rngs) for _ in range(3))

    def __call__(self, x: Any) -> Any:
        """The output."""
        return self.third(self.second(self.first(x)))


def nnx_style() -> Style:
    """A step of nnx that returns its new state."""
    graph, state = nnx.split(NnxModel(nnx.Rngs(0)))

    def step(state: Any, x: Any) -> Any:
        model = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2))(model, x)
        return value, grads, nnx.state(model)

    return step, (state, X)


def with_count(params: Any, count: int) -> Any:
    """A loss with a number that is no array."""
    return loss(params, X) * count


KEY = jax.random.key(3)
STYLES: dict[str, Callable[[], Style]] = {
    "jax.value_and_grad": lambda: (lambda p, x: jax.value_and_grad(loss)(p, x), (PARAMS, X)),
    "from jax import grad": lambda: (lambda p, x: grad(loss, argnums=(0, 1))(p, x), (PARAMS, X)),
    "vjp": lambda: (
        lambda p, x: vjp(lambda p: run(p, x), p)[1](x),
        (PARAMS, X),
    ),
    "vjp with aux": lambda: (
        lambda p, x: vjp(lambda p: (run(p, x), x.sum()), p, has_aux=True)[1](x),
        (PARAMS, X),
    ),
    "linearize": lambda: (lambda p, x: linearize(lambda p: run(p, x), p)[1](p), (PARAMS, X)),
    "jacrev": lambda: (
        lambda p, x: jacrev(lambda x: run(p, x).sum(0))(x),
        (PARAMS, X),
    ),
    "hessian": lambda: (lambda p, x: hessian(lambda x: loss(p, x[None]))(x), (PARAMS, X[0])),
    "grad of grad": lambda: (
        lambda p, x: grad(lambda x: jnp.sum(grad(lambda x: loss(p, x))(x) ** 2))(x),
        (PARAMS, X),
    ),
    "vmap of grad": lambda: (
        lambda p, x: jax.vmap(lambda row: grad(loss)(p, row[None]))(x),
        (PARAMS, X),
    ),
    "grad in scan": lambda: (
        lambda p, x: jax.lax.scan(
            lambda p, row: (
                jax.tree.map(lambda a, g: a - 0.1 * g, p, grad(loss)(p, row[None])),
                0.0,
            ),
            p,
            x,
        )[0],
        (PARAMS, X),
    ),
    "jit inside": lambda: (lambda p, x: value_and_grad(jax.jit(loss))(p, x), (PARAMS, X)),
    "layers by scan": lambda: (lambda p, x: value_and_grad(scanned_loss)(p, x), (PARAMS, X)),
    "key and aux": lambda: (
        lambda p, x, k: value_and_grad(dropout_loss, has_aux=True)(p, x, k),
        (PARAMS, X, KEY),
    ),
    "raw key": lambda: (
        lambda p, x, k: value_and_grad(dropout_loss, has_aux=True)(p, x, k),
        (PARAMS, X, jax.random.PRNGKey(3)),
    ),
    "custom_vjp": lambda: (custom(doubled), (PARAMS, X)),
    "custom_jvp": lambda: (custom(tripled), (PARAMS, X)),
    "optax": lambda: (adam_step, (PARAMS, OPTIMIZER.init(PARAMS), X)),
    "flax.linen": linen_style,
    "equinox": equinox_style,
    "flax.nnx": nnx_style,
    "callback inside": lambda: (lambda p, x: value_and_grad(printed_loss)(p, x), (PARAMS, X)),
    "cond and loop": lambda: (lambda p, x: value_and_grad(branches_loss)(p, x), (PARAMS, X)),
    "a number": lambda: (lambda p: value_and_grad(with_count)(p, 3), (PARAMS,)),
    "bfloat16": lambda: (lambda p, x: value_and_grad(mixed_loss)(p, x), (PARAMS, X)),
    "a partial": lambda: (
        functools.partial(lambda x, p: value_and_grad(loss)(p, x), X),
        (PARAMS,),
    ),
}

# One for each kind of JAX's code that they go through; the others take a minute.
QUICK = ("jax.value_and_grad", "layers by scan", "custom_vjp")
MARKED = [pytest.param(s, marks=[] if s in QUICK else pytest.mark.slow) for s in STYLES]
