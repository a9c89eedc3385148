"""How long does `plan` take for models of real size: thousands of equations, flax and equinox?

Six training steps that a v5e rejects, 60 seconds for each, the compile to the end included.
`python -m benchmarks.models unet` plans one of them, and prints the whole plan.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._timing import table, versions
from benchmarks.plan import processor_seconds, size
from hbmwatch import Plan, plan
from hbmwatch._jax.libtpu_environment import WITHOUT_TPU
from hbmwatch._preflight.changes.sources import bodies
from hbmwatch._preflight.changes.tracing import call_of

SECONDS = float(os.environ.get("HBMWATCH_PLAN_SECONDS", "60"))
HEAD = (
    "model",
    "equations",
    "needs",
    "change",
    "with it",
    "proof",
    "tries",
    "processor s",
    "wall s",
    "load",
)
Step = tuple[Any, tuple[Any, ...]]
VOCABULARY = 32_768
RATE = 1e-3


def transformer(layers: int, width: int, batch: int, length: int, *, scanned: bool) -> Step:
    """A decoder in plain JAX with a hand-written Adam."""

    def block(x: jax.Array, layer: Mapping[str, jax.Array]) -> jax.Array:
        x = x + attention(norm(x, layer["first"]), layer)
        hidden = jax.nn.gelu(norm(x, layer["second"]) @ layer["up"].astype(x.dtype))
        return x + hidden @ layer["down"].astype(x.dtype)

    def attention(x: jax.Array, layer: Mapping[str, jax.Array]) -> jax.Array:
        q, k, v = (
            (x @ layer[name].astype(x.dtype)).reshape(batch, length, -1, 64) for name in "qkv"
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 8
        mask = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return mixed @ layer["o"].astype(x.dtype)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens].astype(jnp.bfloat16)
        if scanned:
            x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, params["layers"])
        else:
            for layer in params["layers"]:
                x = block(x, layer)
        logits = norm(x, params["last"]) @ params["embedding"].T.astype(x.dtype)
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    def train_step(state: Any, tokens: jax.Array) -> Any:
        params, mu, nu = state
        value, grads = jax.value_and_grad(loss)(params, tokens)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
        nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, nu, grads)
        new = jax.tree.map(lambda p, m, n: p - RATE * m / (jnp.sqrt(n) + 1e-8), params, mu, nu)
        return (new, mu, nu), value

    stack = (layers,) if scanned else ()
    square = {name: array(*stack, width, width) for name in "qkvo"}
    layer = {
        **square,
        "up": array(*stack, width, 4 * width),
        "down": array(*stack, 4 * width, width),
        "first": array(*stack, width),
        "second": array(*stack, width),
    }
    params = {
        "embedding": array(VOCABULARY, width),
        "layers": layer if scanned else [layer] * layers,
        "last": array(width),
    }
    tokens = array(batch, length, dtype=jnp.int32)
    return jax.jit(train_step, donate_argnums=0), ((params, params, params), tokens)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMS norm in float32."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-6) * scale).astype(x.dtype)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all tokens, in float32."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array by its shape."""
    return jax.ShapeDtypeStruct(shape, dtype)


def flax_nnx() -> Step:
    """A decoder of flax nnx, with nnx.jit and optax."""
    import optax  # type: ignore[import-untyped]
    from flax import nnx

    width, heads, layers, batch, length = 1024, 16, 12, 16, 1024

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            x = x + self.attention(self.first(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.second(x))))

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embedding = nnx.Embed(VOCABULARY, width, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(layers)])
            self.last = nnx.LayerNorm(width, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x, mask = self.embedding(tokens), nnx.make_causal_mask(tokens)
            for block in self.blocks:
                x = block(x, mask)
            return self.embedding.attend(self.last(x))

    def make() -> Any:
        model = Decoder(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    @nnx.jit
    def train_step(model: Any, optimizer: Any, tokens: jax.Array) -> Any:
        def loss(model: Any) -> jax.Array:
            return cross_entropy(model(tokens)[:, :-1], tokens[:, 1:])

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    model, optimizer = nnx.eval_shape(make)
    return train_step, (model, optimizer, array(batch, length, dtype=jnp.int32))


def equinox() -> Step:
    """A decoder of equinox, with eqx.filter_jit and optax."""
    import equinox as eqx
    import optax

    width, heads, layers, batch, length = 1024, 16, 12, 16, 1024

    class Block(eqx.Module):
        first: eqx.nn.LayerNorm
        second: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 3)
            self.first, self.second = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
            self.attention = eqx.nn.MultiheadAttention(heads, width, key=keys[0])
            self.up = eqx.nn.Linear(width, 4 * width, key=keys[1])
            self.down = eqx.nn.Linear(4 * width, width, key=keys[2])

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            normed = jax.vmap(self.first)(x)
            x = x + self.attention(normed, normed, normed, mask)
            hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.second)(x)))
            return x + jax.vmap(self.down)(hidden)

    class Decoder(eqx.Module):
        embedding: eqx.nn.Embedding
        blocks: list[Block]
        last: eqx.nn.LayerNorm

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, layers + 1)
            self.embedding = eqx.nn.Embedding(VOCABULARY, width, key=keys[0])
            self.blocks = [Block(each) for each in keys[1:]]
            self.last = eqx.nn.LayerNorm(width)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = jax.vmap(self.embedding)(tokens)
            mask = jnp.tril(jnp.ones((length, length), bool))
            for block in self.blocks:
                x = block(x, mask)
            return jax.vmap(self.last)(x) @ self.embedding.weight.T

    optimizer = optax.adam(RATE)

    @eqx.filter_jit(donate="all-except-first")
    def train_step(tokens: jax.Array, model: Any, state: Any) -> Any:
        def loss(model: Any) -> jax.Array:
            return cross_entropy(jax.vmap(model)(tokens)[:, :-1], tokens[:, 1:])

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, value

    def make() -> Any:
        model = Decoder(jax.random.key(0))
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    model, state = eqx.filter_eval_shape(make)
    return train_step, (array(batch, length, dtype=jnp.int32), model, state)


def unet() -> Step:
    """A diffusion UNet of flax linen with group norm, attention and optax."""
    import optax
    from flax import linen as nn

    batch, side, width = 384, 64, 128

    class Residual(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
            h = nn.Conv(self.features, (3, 3))(nn.silu(nn.GroupNorm()(x)))
            h = h + nn.Dense(self.features)(nn.silu(time))[:, None, None]
            h = nn.Conv(self.features, (3, 3))(nn.silu(nn.GroupNorm()(h)))
            return h + (x if x.shape == h.shape else nn.Conv(self.features, (1, 1))(x))

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            flat = nn.GroupNorm()(x).reshape(x.shape[0], -1, x.shape[-1])
            mixed: jax.Array = nn.MultiHeadDotProductAttention(num_heads=8)(flat, flat)
            return x + mixed.reshape(x.shape)

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, t: jax.Array) -> jax.Array:
            angles = t[:, None] * jnp.exp(-jnp.linspace(0, 9, width // 2))
            time = nn.Dense(4 * width)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
            x, kept = nn.Conv(width, (3, 3))(x), []
            levels = list(enumerate((width, 2 * width, 3 * width, 4 * width)))
            for level, features in levels:
                for _ in range(2):
                    x = Residual(features)(x, time)
                    x = Attention()(x) if level > 1 else x
                    kept.append(x)
                x = nn.Conv(features, (3, 3), strides=2)(x) if level < 3 else x
            x = Residual(4 * width)(Attention()(Residual(4 * width)(x, time)), time)
            for level, features in reversed(levels):
                for _ in range(2):
                    x = Residual(features)(jnp.concatenate([x, kept.pop()], -1), time)
                    x = Attention()(x) if level > 1 else x
                if level:
                    shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
                    x = nn.Conv(features, (3, 3))(jax.image.resize(x, shape, "nearest"))
            return nn.Conv(3, (3, 3))(nn.silu(nn.GroupNorm()(x)))

    model, optimizer = UNet(), optax.adam(RATE)

    def loss(params: Any, images: jax.Array, key: jax.Array) -> jax.Array:
        t = jax.random.uniform(key, images.shape[:1])
        noise = jax.random.normal(key, images.shape)
        level = t[:, None, None, None]
        noisy = jnp.sqrt(1 - level) * images + jnp.sqrt(level) * noise
        made: Any = model.apply(params, noisy, t)
        return jnp.mean((made - noise) ** 2)

    def train_step(params: Any, state: Any, images: jax.Array, key: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, images, key)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    images, t = array(batch, side, side, 3), array(batch)
    params = jax.eval_shape(model.init, jax.random.key(0), images, t)
    state = jax.eval_shape(optimizer.init, params)
    key = jax.eval_shape(jax.random.key, 0)
    return jax.jit(train_step, donate_argnums=(0, 1)), (params, state, images, key)


MODELS: dict[str, Callable[[], Step]] = {
    "transformer24": lambda: transformer(24, 1024, 16, 1024, scanned=False),
    "transformer48": lambda: transformer(48, 768, 16, 1024, scanned=False),
    "scanned24": lambda: transformer(24, 1024, 16, 1024, scanned=True),
    "flax_nnx": flax_nnx,
    "equinox": equinox,
    "unet": unet,
}


def row_of(name: str, equations: int, found: Plan, cpu_s: float, wall_s: float) -> list[str]:
    """What a plan found, and what it took."""
    best = found.best
    return [
        name,
        f"{equations:,}",
        size(found.before.peak_bytes),
        "none" if best is None else " + ".join(best.changes),
        "" if best is None else size(best.peak_bytes),
        "" if best is None else best.proof,
        str(len(found.rows)),
        f"{cpu_s:.0f}",
        f"{wall_s:.0f}",
        f"{os.getloadavg()[0]:.0f}",
    ]


def equations_in(jaxpr: Any) -> int:
    """The equations of a program, those of the bodies of its equations too."""
    inner = (body for equation in jaxpr.eqns for body in bodies(equation))
    return len(jaxpr.eqns) + sum(map(equations_in, inner))


def main(names: list[str]) -> None:
    """Print a row for each model."""
    os.environ |= {**WITHOUT_TPU, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    jax.config.update("jax_platforms", "cpu")
    rows = []
    for name in [each for each in MODELS if each in names] or MODELS:
        step, args = MODELS[name]()
        start, before = time.monotonic(), processor_seconds()
        found = plan(step, *args, on="v5e", seconds=SECONDS)
        wall_s, cpu_s = time.monotonic() - start, processor_seconds() - before
        equations = equations_in(call_of(step, args, {}, "tpu").jaxpr.jaxpr)
        rows.append(row_of(name, equations, found, cpu_s, wall_s))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
        if names:
            print(found, "\n", file=sys.stderr, flush=True)
    print(f"{__doc__}\n{versions('jax', 'libtpu')}, {os.cpu_count()} cores\n")
    print(table(HEAD, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
