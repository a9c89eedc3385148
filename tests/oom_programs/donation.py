"""Programs with a state: it is not donated, or donated in vain, or larger than it has to be."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.oom_programs.base import adam, array, case, mesh, mlp, on_one, sharded


@case("donation", "the issue's own: 16 layers with momentum")
def momentum_step(fault: bool) -> Any:
    """Momentum on 16 dense layers, the state returned and not donated."""

    def train_step(state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: (mlp(p, x) ** 2).mean())(state["params"])
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], grads)
        params = jax.tree.map(lambda p, v: p - 0.1 * v, state["params"], velocity)
        return {"params": params, "velocity": velocity}

    layers = [array(8192, 8192)] * 16
    state = {"params": layers, "velocity": layers}
    donated: dict[str, Any] = {} if fault else {"donate_argnums": 0}
    return on_one(train_step, state, array(256, 8192), **donated)


@case("donation", "poets-ai/elegy#226, p-doom/jasmine#163")
def adam_step(fault: bool) -> Any:
    """Adam over a nested state of named blocks, as a flax train state has it."""

    def train_step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            x = batch["x"]
            for block in params.values():
                x = jax.nn.gelu(x @ block["up"]["kernel"]) @ block["down"]["kernel"]
            return ((x - batch["y"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        params, mu, nu = adam(state["params"], state["opt"]["mu"], state["opt"]["nu"], grads)
        return {"params": params, "opt": {"mu": mu, "nu": nu}}, value

    block = {"up": {"kernel": array(4096, 12288)}, "down": {"kernel": array(12288, 4096)}}
    params = {f"block_{i}": block for i in range(8)}
    state = {"params": params, "opt": {"mu": params, "nu": params}}
    batch = {"x": array(512, 4096), "y": array(512, 4096)}
    donated: dict[str, Any] = {} if fault else {"donate_argnums": 0}
    return on_one(train_step, state, batch, **donated)


@case("donation", "decode loops: the cache is returned")
def decode_step(fault: bool) -> Any:
    """One token of decoding that gives the key and value caches back."""

    def decode(params: Any, cache: Any, token: Any, position: Any) -> Any:
        x = params["embed"][token]
        keys, values = cache["k"], cache["v"]
        for layer in range(24):
            k = (x @ params["wk"][layer])[None, :, None]
            keys = jax.lax.dynamic_update_slice(keys, k, (layer, 0, position, 0))
            v = (x @ params["wv"][layer])[None, :, None]
            values = jax.lax.dynamic_update_slice(values, v, (layer, 0, position, 0))
            scores = jnp.einsum("bd,btd->bt", x, keys[layer])
            x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values[layer])
        return x, {"k": keys, "v": values}

    cache = array(24, 64, 2048, 1024, dtype=jnp.bfloat16)
    weights = array(24, 1024, 1024, dtype=jnp.bfloat16)
    params = {"embed": array(32000, 1024, dtype=jnp.bfloat16), "wk": weights, "wv": weights}
    donated: dict[str, Any] = {} if fault else {"donate_argnums": 1}
    return on_one(
        decode,
        params,
        {"k": cache, "v": cache},
        array(64, dtype=jnp.int32),
        array(dtype=jnp.int32),
        **donated,
    )


@case("donation-unusable", "AI-Hypercomputer/maxtext#495")
def moments_in_float32(fault: bool) -> Any:
    """bfloat16 moments are donated, and the optimizer gives float32 ones back."""
    moment = jnp.float32 if fault else jnp.bfloat16

    def train_step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return (mlp(params, x).astype(jnp.float32) ** 2).mean()

        grads = jax.grad(loss)(state["params"])
        mu = jax.tree.map(
            lambda m, g: (0.9 * m.astype(jnp.float32) + g.astype(jnp.float32)).astype(moment),
            state["mu"],
            grads,
        )
        params = jax.tree.map(
            lambda p, m: (p - 1e-3 * m.astype(jnp.float32)).astype(p.dtype), state["params"], mu
        )
        return {"params": params, "mu": mu}

    layers = [array(8192, 8192, dtype=jnp.bfloat16)] * 32
    state = {"params": layers, "mu": layers}
    return on_one(train_step, state, array(256, 8192, dtype=jnp.bfloat16), donate_argnums=0)


@case("donation-unusable", "jax-ml/jax#15368: the output is laid over the mesh another way")
def donated_other_sharding(fault: bool) -> Any:
    """The state is donated and is returned sharded over one axis of the mesh instead of both."""
    over = mesh("data", "model")
    both, one = NamedSharding(over, P("data", "model")), NamedSharding(over, P("data"))

    def step(state: Any, x: Any) -> Any:
        return {name: w * 0.9 + x[:, None] for name, w in state.items()}

    state = {f"w{i}": sharded(both, 16384, 16384) for i in range(32 if fault else 72)}
    x = sharded(NamedSharding(over, P("data")), 16384)
    out = dict.fromkeys(state, one if fault else both)
    return jax.jit(step, donate_argnums=0, out_shardings=out).lower(state, x)


@case("zero-gradients", "nstarman/quax#28: frozen weights get gradients, too")
def frozen_weights(fault: bool) -> Any:
    """The whole model is differentiated, but only small matrices are trained."""
    layers, bf16 = 72, jnp.bfloat16

    def loss(trained: Any, frozen: Any, x: Any) -> Any:
        for base, (down, up) in zip(frozen, trained):
            x = jnp.tanh(x @ base + (x @ down) @ up)
        return (x.astype(jnp.float32) ** 2).mean()

    def train_step(model: Any, x: Any) -> Any:
        def whole(model: Any) -> Any:
            return loss(model["trained"], jax.lax.stop_gradient(model["frozen"]), x)

        if fault:
            return jax.value_and_grad(whole)(model)
        return jax.value_and_grad(loss)(model["trained"], model["frozen"], x)

    pair = (array(8192, 16, dtype=bf16), array(16, 8192, dtype=bf16))
    model = {"frozen": [array(8192, 8192, dtype=bf16)] * layers, "trained": [pair] * layers}
    return on_one(train_step, model, array(128, 8192, dtype=bf16))


@case(
    "donation", "vllm-project/tpu-inference#146: the inner jit donates the cache, the outer one not"
)
def inner_jit(fault: bool) -> Any:
    """Caches are written by index in a jit that donates them, inside of one that does not."""

    @functools.partial(jax.jit, donate_argnums=0)
    def write(cache: Any, rows: Any, slots: Any) -> Any:
        return cache.at[slots].set(rows)

    @jax.jit
    def decode(params: Any, caches: Any, x: Any, slots: Any, tables: Any) -> Any:
        new = []
        for w, cache in zip(params, caches):
            cache = write(cache, x @ w, slots)
            rows = cache[tables]
            weights = jax.nn.softmax(jnp.einsum("bd,bsd->bs", x @ w, rows))
            x = x + jnp.einsum("bs,bsd->bd", weights, rows)
            new.append(cache)
        return new, x

    def step(params: Any, caches: Any, x: Any, slots: Any, tables: Any) -> Any:
        return decode(params, caches, x, slots, tables)

    params = [array(1024, 1024, dtype=jnp.bfloat16)] * 8
    caches = [array(557056, 1024, dtype=jnp.bfloat16)] * 8
    index = (array(64, dtype=jnp.int32), array(64, 128, dtype=jnp.int32))
    donated: dict[str, Any] = {} if fault else {"donate_argnums": 1}
    return on_one(step, params, caches, array(64, 1024, dtype=jnp.bfloat16), *index, **donated)


@case("training-state", "huggingface/transformers#12544: parameters and both moments in float32")
def adam_moments(fault: bool) -> Any:
    """The moments of Adam beside the parameters; the fix holds rows and columns of the second."""

    def layer(x: Any, w: Any) -> Any:
        w = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), w)
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(params: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params)
        return (x.astype(jnp.float32) ** 2).mean()

    def train_step(state: Any, x: Any) -> Any:
        grads = jax.grad(loss)(state["params"], x)
        if fault:
            params, mu, nu = adam(state["params"], state["mu"], state["nu"], grads)
            return {"params": params, "mu": mu, "nu": nu}
        rows = jax.tree.map(lambda g: (g * g).mean(-1, keepdims=True), grads)
        columns = jax.tree.map(lambda g: (g * g).mean(-2, keepdims=True), grads)
        params = jax.tree.map(
            lambda p, g, r, c: p - 1e-3 * g * jax.lax.rsqrt(r * c / r.mean() + 1e-8),
            *(state["params"], grads, rows, columns),
        )
        return {"params": params}

    params = {"up": array(38, 2048, 8192), "down": array(38, 8192, 2048)}
    state = dict.fromkeys(("params", "mu", "nu") if fault else ("params",), params)
    return on_one(train_step, state, array(2048, 2048, dtype=jnp.bfloat16), donate_argnums=0)
