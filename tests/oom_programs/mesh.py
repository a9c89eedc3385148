"""Programs that keep an array in full on every device of a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.oom_programs.base import adam, case, mesh, mlp, sharded


@case("replication", "mlcommons/algorithmic-efficiency#797")
def replicated_optimizer_state(fault: bool) -> Any:
    """Data parallel training with parameters and optimizer state whole on every chip."""
    over = mesh("data")
    kept = NamedSharding(over, P() if fault else P("data"))

    def train_step(state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: (mlp(p, x) ** 2).mean())(state["params"])
        params, mu, nu = adam(state["params"], state["mu"], state["nu"], grads)
        return {"params": params, "mu": mu, "nu": nu}

    layers = [sharded(kept, 8192, 8192) for _ in range(24)]
    state = {"params": layers, "mu": layers, "nu": layers}
    x = sharded(NamedSharding(over, P("data")), 1024, 8192)
    out = jax.tree.map(lambda _: kept, state)
    return jax.jit(train_step, donate_argnums=0, out_shardings=out).lower(state, x)


@case("replication", "jax-ml/jax#20710, huggingface/transformers flax examples")
def replicated_batch(fault: bool) -> Any:
    """The batch of a data parallel step was never sharded: every chip does all of it."""
    over = mesh("data")
    whole = NamedSharding(over, P())

    def train_step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for block in params:
                h = h + jax.nn.gelu(h @ block["up"]) @ block["down"]
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = [{"up": sharded(whole, 1024, 4096), "down": sharded(whole, 4096, 1024)}] * 12
    x = sharded(
        NamedSharding(over, P() if fault else P("data")), 262144 * (1 if fault else 4), 1024
    )
    out = (jax.tree.map(lambda _: whole, params), whole)
    return jax.jit(train_step, donate_argnums=0, out_shardings=out).lower(params, x)


@case("replication", "vllm-project/tpu-inference#3077")
def replicated_output(fault: bool) -> Any:
    """Weights are gathered to every chip by an out_sharding."""
    over = mesh("model")
    rows = NamedSharding(over, P("model"))
    out = NamedSharding(over, P()) if fault else rows

    def load(weights: Any) -> Any:
        return {name: (w * 0.5) for name, w in weights.items()}

    weights = {f"w{i}": sharded(rows, 16384, 32768) for i in range(8 if fault else 32)}
    return jax.jit(load, out_shardings=dict.fromkeys(weights, out)).lower(weights)


@case("replication", "jax-ml/jax#16679, keras-team/keras-hub#2441")
def unsharded_init(fault: bool) -> Any:
    """Parameters are initialized without an out_sharding, so each chip holds them in full."""
    over = mesh("model")
    out = NamedSharding(over, P() if fault else P("model"))

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 12)
        return {
            f"layer_{i}": {"kernel": jax.random.normal(keys[i], (16384, 32768)) * 0.02}
            for i in range(12)
        }

    key = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=NamedSharding(over, P()))
    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map(lambda _: out, shapes)).lower(key)


@case("gather", "jax-ml/jax#20381: a permutation along a sharded axis")
def gathered_permutation(fault: bool) -> Any:
    """Examples are shuffled along the axis over which they are sharded."""
    over = mesh("data")
    rows = NamedSharding(over, P("data"))

    def epoch(key: Any, images: Any, w: Any) -> Any:
        if fault:
            images = jax.random.permutation(key, images)
        return (images @ w).sum()

    images = sharded(rows, 524288, 8192)
    w = sharded(NamedSharding(over, P()), 8192, 128)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=NamedSharding(over, P()))
    return jax.jit(epoch, out_shardings=NamedSharding(over, P())).lower(key, images, w)


@case("gather", "openxla/xla#44794: one layer of a stack that is sharded over the layers")
def gathered_layer_stack(fault: bool) -> Any:
    """A scan runs over weights that are sharded along the axis that it scans."""
    over = mesh("model")
    spec = P("model") if fault else P(None, "model")

    def forward(layers: Any, x: Any) -> Any:
        def body(h: Any, w: Any) -> Any:
            return jnp.tanh(h @ w), None

        return jax.lax.scan(body, x, layers)[0]

    layers = sharded(NamedSharding(over, spec), 96, 8192, 8192)
    x = sharded(NamedSharding(over, P()), 128, 8192)
    return jax.jit(forward, out_shardings=NamedSharding(over, P())).lower(layers, x)
