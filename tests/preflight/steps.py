"""Steps of the size that people train, for the tests that compile them to the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

S = jax.ShapeDtypeStruct
Made = tuple[Any, Callable[[int], tuple[Any, ...]]]


def mlp(width: int = 4096, layers: int = 8) -> Made:
    """A GELU MLP under Adam, parameters and state donated; the size is the batch."""
    optimizer = optax.adam(1e-3)

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weights in params:
            x = jax.nn.gelu(x @ weights)
        return jnp.mean((x - y) ** 2)

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    params = [S((width, width), jnp.float32)] * layers
    state = jax.eval_shape(optimizer.init, params)

    def args_of(n: int) -> tuple[Any, ...]:
        batch = S((n, width), jnp.float32)
        return params, state, batch, batch

    return jax.jit(train_step, donate_argnums=(0, 1)), args_of


def _norm(h: Any, gain: Any) -> Any:
    wide = h.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(h.dtype) * gain.astype(h.dtype)


def _block(h: Any, p: Any) -> Any:
    b, t, d = h.shape
    x = _norm(h, p["ln1"])
    q, k, v = jnp.split(x @ p["qkv"].astype(x.dtype), 3, -1)
    q, k, v = (a.reshape(b, t, 16, d // 16) for a in (q, k, v))
    a = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d)
    h = h + a @ p["o"].astype(x.dtype)
    x = _norm(h, p["ln2"])
    return h + jax.nn.gelu(x @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)


def gpt(layers: int = 24, d: int = 1024, vocab: int = 32768, length: int = 1024) -> Made:
    """A transformer by lax.scan with each layer under jax.checkpoint; the size is the batch."""
    optimizer = optax.adamw(1e-4)
    block = jax.checkpoint(_block)

    def loss(params: Any, tokens: Any) -> Any:
        h = params["emb"].astype(jnp.bfloat16)[tokens]
        h, _ = jax.lax.scan(lambda h, p: (block(h, p), None), h, params["blocks"])
        logits = _norm(h, params["lnf"]) @ params["emb"].T.astype(jnp.bfloat16)
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32)[:, :-1], tokens[:, 1:]
            )
        )

    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    shapes = {
        "qkv": (d, 3 * d),
        "o": (d, d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
        "ln1": (d,),
        "ln2": (d,),
    }
    params = {
        "emb": S((vocab, d), jnp.float32),
        "blocks": {name: S((layers, *shape), jnp.float32) for name, shape in shapes.items()},
        "lnf": S((d,), jnp.float32),
    }
    state = jax.eval_shape(optimizer.init, params)
    step = jax.jit(train_step, donate_argnums=(0, 1))
    return step, lambda n: (params, state, S((n, length), jnp.int32))


def decode(layers: int = 24, d: int = 2048, length: int = 4096) -> Made:
    """A token for each sequence, with a donated cache of keys and values; the size is the batch."""
    heads, kv_heads, wide = 16, 4, d // 16

    def layer(pos: Any, h: Any, given: Any) -> tuple[Any, Any]:
        p, keys, values = given
        b = h.shape[0]
        x = _norm(h, p["ln1"])
        q = (x @ p["q"]).reshape(b, 1, heads, wide)
        key, value = (
            (x @ p[name]).astype(keys.dtype).reshape(b, 1, kv_heads, wide) for name in "kv"
        )
        keys = jax.lax.dynamic_update_slice(keys, key, (0, pos, 0, 0))
        values = jax.lax.dynamic_update_slice(values, value, (0, pos, 0, 0))
        seen = jnp.broadcast_to(jnp.arange(length) <= pos, (b, 1, 1, length))
        h = h + jax.nn.dot_product_attention(q, keys, values, mask=seen).reshape(b, d) @ p["o"]
        return h + jax.nn.gelu(_norm(h, p["ln2"]) @ p["up"]) @ p["down"], (keys, values)

    @functools.partial(jax.jit, donate_argnums=1)
    def decode_step(params: Any, cache: Any, tokens: Any, pos: Any) -> Any:
        layers_and_caches = (params["blocks"], *cache)
        h, cache = jax.lax.scan(
            functools.partial(layer, pos), params["emb"][tokens], layers_and_caches
        )
        return jnp.argmax(h @ params["emb"].T, -1), cache

    shapes = {
        "q": (d, d),
        "k": (d, kv_heads * wide),
        "v": (d, kv_heads * wide),
        "o": (d, d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
        "ln1": (d,),
        "ln2": (d,),
    }
    params = {
        "emb": S((32768, d), jnp.bfloat16),
        "blocks": {name: S((layers, *shape), jnp.bfloat16) for name, shape in shapes.items()},
    }

    def args_of(n: int) -> tuple[Any, ...]:
        cache = S((layers, n, length, kv_heads, wide), jnp.bfloat16)
        return params, (cache, cache), S((n,), jnp.int32), S((), jnp.int32)

    return decode_step, args_of


def scanned(layers: int = 6) -> Made:
    """The gradient through a lax.scan, whose residuals are stacked."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            body = lambda x, w: (jnp.sin(x @ w), None)  # noqa: E731
            return jax.lax.scan(body, x, weights)[0].sum()

        return jax.grad(loss)(weights)

    weights = S((layers, 512, 512), jnp.float32)
    return jax.jit(step), lambda n: (weights, S((n, 512), jnp.float32))


def matmul() -> Made:
    """A product."""
    return jax.jit(lambda x: x @ x), lambda n: (S((n, n), jnp.float32),)


def distances() -> Made:
    """The gradient of a reduction over all pairs."""

    def step(x: Any) -> Any:
        return jax.grad(lambda x: jax.nn.logsumexp(x @ x.T, -1).sum())(x)

    return jax.jit(step), lambda n: (S((n, 256), jnp.float32),)


def sampling() -> Made:
    """Random numbers, from a key alone."""
    key = jax.eval_shape(jax.random.key, 0)
    return jax.jit(lambda key: jax.random.normal(key, (1024, 1024))), lambda n: (key,)


def running_sum() -> Made:
    """A scan along rows."""
    return jax.jit(lambda x: jnp.cumsum(x, 1) * 2), lambda n: (S((n, 2048), jnp.float32),)


SMALL: dict[str, tuple[Made, int]] = {
    "mlp": (mlp(512, 2), 256),
    "scanned": (scanned(), 256),
    "matmul": (matmul(), 2048),
    "distances": (distances(), 1024),
    "sampling": (sampling(), 1),
    "running sum": (running_sum(), 512),
}
