"""Programs with one large buffer, a wide dtype, padding, or nothing wrong."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from tests.oom_programs.base import array, case, on_one
from tests.programs import devices


@case("constant", "jax-ml/jax#16278: a jitted closure over a large array", limit_mib=8)
def captured_constant(fault: bool) -> Any:
    """A function closes over a table, which becomes part of the program."""
    table = np.random.default_rng(0).standard_normal((4, 1024, 1024), dtype=np.float32)

    def closed(x: Any) -> Any:
        return jnp.einsum("tij,bj->bti", jnp.asarray(table), x).sum(1)

    def passed(x: Any, table: Any) -> Any:
        return jnp.einsum("tij,bj->bti", table, x).sum(1)

    if fault:
        return on_one(closed, array(8, 1024))
    return on_one(passed, array(8, 1024), array(4, 1024, 1024))


@case("layout-copy", "vllm-project/tpu-inference#3366: rows of 64 in a table", limit_mib=8192)
def narrow_table(fault: bool) -> Any:
    """Rows are read from a table of 64 columns, which lies the other way round."""

    def lookup(table: Any, tokens: Any) -> Any:
        return table[tokens]

    table = array(1 << 24, 64 if fault else 128)
    return on_one(lookup, table, array(4096, dtype=jnp.int32))


@case("host-fetch", "jax-ml/jax#28137: parameters in host memory, and where they are fetched")
def fetched_stack(fault: bool) -> Any:
    """The layers are in host memory; the whole stack is fetched before the scan over it."""
    one = devices("tpu")[0]
    there = SingleDeviceSharding(one, memory_kind="pinned_host")
    here = SingleDeviceSharding(one, memory_kind="device")

    def forward(layers: Any, x: Any) -> Any:
        def body(h: Any, w: Any) -> Any:
            return jnp.tanh(h @ (w if fault else jax.device_put(w, here))), None

        return jax.lax.scan(body, x, jax.device_put(layers, here) if fault else layers)[0]

    layers = jax.ShapeDtypeStruct((72, 12288, 12288), jnp.bfloat16, sharding=there)
    return on_one(forward, layers, array(128, 12288, dtype=jnp.bfloat16))


@case("callback", "OpenXLA E1000: a jax.debug.print that was left behind")
def debug_print(fault: bool) -> Any:
    """A debug print of an intermediate keeps it whole."""

    def step(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        if fault:
            jax.debug.print("h {}", h)
        return (h * h).sum()

    return on_one(step, array(524288, 512), array(512, 8192))


@case("padding", "DifferentiableUniverseInitiative/flowpm#27")
def particle_positions(fault: bool) -> Any:
    """Positions of particles as [N, 3] after a reshape."""

    def paint(flat: Any) -> Any:
        if fault:
            return jnp.sort(flat.reshape(-1, 3), axis=-1)
        x, y, z = jnp.split(flat, 3)
        low, high = jnp.minimum(x, y), jnp.maximum(x, y)
        return jnp.minimum(low, z), jnp.clip(z, low, high), jnp.maximum(high, z)

    return on_one(paint, array(3 * (1 << 25)))


@case("padding", "google/flax#1733, pytorch/xla#2016: few channels", limit_mib=8192)
def few_channels(fault: bool) -> Any:
    """A volume with two channels in its last dimension."""

    def network(x: Any, kernel: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x, kernel, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
        )
        return jax.nn.relu(y)

    channels = 2 if fault else 128
    space = (32, 2176, 1056) if fault else (8, 136, 264)
    return on_one(network, array(2, *space, channels), array(3, 3, 3, channels, channels))


@case("dtype", "google/flax mixed precision threads: weights cast before a loop", platform="gpu")
def cast_weights(fault: bool) -> Any:
    """bfloat16 weights are cast to float32 all at once, in front of a loop that uses them."""
    wide = jnp.float32 if fault else jnp.bfloat16

    def generate(layers: Any, x: Any) -> Any:
        layers = [w.astype(wide) for w in layers]

        def token(_: Any, h: Any) -> Any:
            for w in layers:
                h = jnp.tanh(h @ w)
            return h

        return jax.lax.fori_loop(0, 128, token, x.astype(wide))

    layers = [array(16384, 16384, dtype=jnp.bfloat16, platform="gpu")] * 48
    x = array(16, 16384, dtype=jnp.bfloat16, platform="gpu")
    return on_one(generate, layers, x, platform="gpu")


@case("dtype", "jax-ml/jax#3302: a bfloat16 model that computes in float32")
def upcast_activations(fault: bool) -> Any:
    """bfloat16 images become float32 in the first operation, and all that follows with them."""
    wide = jnp.float32 if fault else jnp.bfloat16

    def network(params: Any, images: Any) -> Any:
        x = images.astype(wide)
        for w in params:
            x = jax.nn.relu(x @ w.astype(wide))
        return x

    params = [array(4096, 4096, dtype=jnp.bfloat16)] * 4
    return on_one(network, params, array(524288, 4096, dtype=jnp.bfloat16))


@case("long-lived", "a skip connection from the first operation to the last")
def long_skip(fault: bool) -> Any:
    """A large intermediate is made first, used last, and waits in between."""

    def network(params: Any, x: Any) -> Any:
        early = jnp.sort(x @ params["lift"], axis=-1)
        h = early.mean(-1, keepdims=True) * x
        for w in params["body"]:
            h = jnp.sort(jnp.tanh(h @ w["up"]), axis=-1) @ w["down"]
        scale = h.mean(-1, keepdims=True)
        return (early * scale).sum(-1) if fault else scale[:, 0]

    body = [{"up": array(512, 49152), "down": array(49152, 512)} for _ in range(6)]
    params = {"lift": array(512, 65536), "body": body}
    return on_one(network, params, array(32768, 512))


@case("aggregate", "young-geng/EasyLM#36: nothing wrong, only too much")
def ordinary_inference(fault: bool) -> Any:
    """A forward pass over too large a batch: every buffer is ordinary."""
    batch = 1 << 19 if fault else 1 << 12

    def network(params: Any, x: Any) -> Any:
        for w in params:
            x = jax.nn.relu(x @ w)
        return x

    return on_one(network, [array(4096, 4096)] * 6, array(batch, 4096))
