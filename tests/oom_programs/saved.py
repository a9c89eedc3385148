"""Programs that keep too much for the backward pass, or recompute too much at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.oom_programs.base import array, attention, case, decoder_params, ffn, mlp, on_one


@case("residuals", "google-research/t5x#1253 and every scanned decoder")
def scanned_decoder(fault: bool) -> Any:
    """A decoder of scanned layers without jax.checkpoint around the layer."""

    def block(x: Any, p: Any) -> Any:
        return x + ffn(p, x + attention(p, x, 8)), None

    body = block if fault else jax.checkpoint(block)

    def train_step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return (jax.lax.scan(body, x, params)[0] ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = decoder_params(1024, 24)
    return on_one(train_step, params, array(16, 1024, 1024), donate_argnums=0)


@case("residuals", "jax-ml/jax#5395: a stack of layers, unrolled")
def unrolled_layers(fault: bool) -> Any:
    """The layers are a Python loop, and each keeps what it made for the backward pass."""

    def block(p: Any, x: Any) -> Any:
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    apply = block if fault else jax.checkpoint(block)

    def train_step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for p in params:
                h = apply(p, h)
            return (h**2).mean()

        grads = jax.grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    params = [{"up": array(2048, 8192), "down": array(8192, 2048)}] * 12
    return on_one(train_step, params, array(131072, 2048), donate_argnums=0)


@case("residuals", "google-research/big_vision: blocks named by number, as by flax")
def named_blocks(fault: bool) -> Any:
    """Each block has a name of its own, so that nothing it keeps is named as another's.

    Only the two norms of one block are alike by name.
    """

    def norm(x: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def block(p: Any, x: Any) -> Any:
        x = x + norm(x) @ p["mix"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    apply = block if fault else jax.checkpoint(block)

    def train_step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for number, p in enumerate(params):
                with jax.named_scope(f"Block_{number}"):
                    h = apply(p, h)
            return (h**2).mean()

        grads = jax.grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    one = {"mix": array(1024, 1024), "up": array(1024, 4096), "down": array(4096, 1024)}
    return on_one(train_step, [one] * 12, array(262144, 1024), donate_argnums=0)


@case("residuals", "jax-ml/jax#3186: the gradient of a scan")
def gradient_of_scan(fault: bool) -> Any:
    """The gradient of a scan whose body makes a large array in each step."""

    def objective(x: Any, ys: Any) -> Any:
        z = jnp.ones((6000, 6000))

        def body(carry: Any, y: Any) -> Any:
            return carry + jnp.sin(x * (y + z)), None

        step = body if fault else jax.checkpoint(body)
        return jax.lax.scan(step, jnp.zeros_like(z), ys)[0].mean()

    return on_one(jax.grad(objective), array(), array(120))


@case("residuals", "patrick-kidger/diffrax#685: backpropagation through a solver")
def ode_adjoint(fault: bool) -> Any:
    """Runge-Kutta steps under reverse mode keep every stage of every step."""

    def field(params: Any, y: Any) -> Any:
        return jnp.tanh(y @ params["w1"]) @ params["w2"]

    def step(params: Any, y: Any) -> Any:
        k1 = field(params, y)
        k2 = field(params, y + 0.05 * k1)
        k3 = field(params, y + 0.05 * k2)
        k4 = field(params, y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def solve(params: Any, y0: Any) -> Any:
        def body(y: Any, _: Any) -> Any:
            return step(params, y), None

        return jax.lax.scan(body if fault else jax.checkpoint(body), y0, None, length=500)[0]

    def train_step(params: Any, y0: Any, target: Any) -> Any:
        grads = jax.grad(lambda p: ((solve(p, y0) - target) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {"w1": array(256, 1024), "w2": array(1024, 256)}
    return on_one(train_step, params, array(4096, 256), array(4096, 256))


@case("checkpoint", "jax-ml/jax#19822, #12792: one checkpoint around everything")
def coarse_checkpoint(fault: bool) -> Any:
    """One jax.checkpoint around all layers recomputes them all at once."""

    def block(p: Any, x: Any) -> Any:
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def network(params: Any, x: Any) -> Any:
        for p in params:
            x = block(p, x) if fault else jax.checkpoint(block)(p, x)
        return (x**2).mean()

    loss = jax.checkpoint(network) if fault else network

    def train_step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = [{"up": array(2048, 8192), "down": array(8192, 2048)}] * 12
    return on_one(train_step, params, array(131072, 2048), donate_argnums=0)


@case("checkpoint", "google/maxtext remat_policy: a policy that saves what it should not")
def saving_policy(fault: bool) -> Any:
    """The layers are checkpointed with a policy that saves every product."""
    policy = jax.checkpoint_policies.dots_saveable if fault else None

    def block(x: Any, p: Any) -> Any:
        return x + ffn(p, x + attention(p, x, 8)), None

    body = jax.checkpoint(block, policy=policy)

    def train_step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return (jax.lax.scan(body, x, params)[0] ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = decoder_params(1024, 24)
    return on_one(train_step, params, array(16, 1024, 1024), donate_argnums=0)


@case("checkpoint", "jax-ml/jax#27748: a checkpoint around the scan and not its body")
def checkpoint_around_scan(fault: bool) -> Any:
    """jax.checkpoint wraps the whole scan, so that the backward pass stacks all steps again."""

    def block(x: Any, p: Any) -> Any:
        return x + ffn(p, x), None

    def network(params: Any, x: Any) -> Any:
        body = block if fault else jax.checkpoint(block)
        return (jax.lax.scan(body, x, params)[0] ** 2).mean()

    loss = jax.checkpoint(network) if fault else network

    def train_step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    lead = 24
    params = {"up": array(lead, 1024, 4096), "down": array(lead, 4096, 1024)}
    return on_one(train_step, params, array(32768, 1024), donate_argnums=0)


@case("checkpoint", "marin-community/levanter#427: the inputs of 64 checkpointed layers")
def carried_inputs(fault: bool) -> Any:
    """Each layer is checkpointed, and the inputs of all are kept; the fix nests checkpoints."""

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    def group(x: Any, weights: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(layer), x, weights)

    def loss(weights: Any, x: Any) -> Any:
        if fault:
            return (group(x, weights)[0].astype(jnp.float32) ** 2).mean()
        grouped = jax.tree.map(lambda w: w.reshape(8, 8, *w.shape[1:]), weights)
        x, _ = jax.lax.scan(jax.checkpoint(group), x, grouped)
        return (x.astype(jnp.float32) ** 2).mean()

    weights = (array(64, 2048, 2048, dtype=jnp.bfloat16),) * 2
    return on_one(jax.value_and_grad(loss), weights, array(32, 2048, 2048, dtype=jnp.bfloat16))


@case("gradients", "jax-ml/jax#30338: the update waits for the gradients of all scanned layers")
def stacked_gradients(fault: bool) -> Any:
    """The gradients of all layers are stacked; the fix updates a layer when it has its gradient."""

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["up"]) @ w["down"]

    def train_step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return (jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)[0] ** 2).mean()

        if fault:
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))
        last, inputs = jax.lax.scan(lambda x, w: (layer(x, w), x), x, params)

        def backward(carry: Any, i: Any) -> Any:
            g, params = carry
            w = jax.tree.map(lambda p: jax.lax.dynamic_index_in_dim(p, i, keepdims=False), params)
            dw, g = jax.vjp(lambda w, x: layer(x, w), w, inputs[i])[1](g)
            new = jax.tree.map(
                lambda p, a, d: jax.lax.dynamic_update_index_in_dim(p, a - 0.1 * d, i, 0),
                *(params, w, dw),
            )
            return (g, new), None

        steps = jnp.arange(len(inputs))[::-1]
        (_, new), _ = jax.lax.scan(backward, (2 * last / last.size, params), steps)
        return new

    params = {"up": array(36, 4096, 8192), "down": array(36, 8192, 4096)}
    return on_one(train_step, params, array(256, 4096), donate_argnums=0)


@case("gradients", "young-geng/EasyLM#36: gradients of micro-batches are added up in a scan")
def accumulated_gradients(fault: bool) -> Any:
    """The sum of the gradients is as large as the parameters; the fix takes one batch."""

    def loss(params: Any, x: Any) -> Any:
        return (mlp(params, x) ** 2).mean()

    def train_step(params: Any, batches: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None

        if fault:
            grads, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
        else:
            grads = jax.grad(loss)(params, batches.reshape(-1, batches.shape[-1]))
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    return on_one(train_step, [array(8192, 8192)] * 32, array(4, 64, 8192), donate_argnums=0)
