"""Programs that run out of memory as public out-of-memory threads did, each with a repaired twin.

Every builder takes `fault`: True gives the program of the thread, False the program after the fix
that closed it. They are lowered for TPU v5e (or the H100) and compiled by the real compiler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from tests.programs import devices


@dataclass(frozen=True)
class Case:
    """A thread as a program: what is wrong in it, and where it was told.

    Attributes:
        name: The builder's name.
        kind: The slug of the finding that the fix of the thread stands for.
        source: The thread, or threads.
        build: The builder.
        platform: "tpu" or "gpu".
        limit_mib: What the compiler may use, where that is less than a v5e has.
    """

    name: str
    kind: str
    source: str
    build: Callable[[bool], Any]
    platform: str
    limit_mib: int | None


CASES: list[Case] = []
Build = Callable[[bool], Any]


def case(
    kind: str, source: str, platform: str = "tpu", limit_mib: int | None = None
) -> Callable[[Build], Build]:
    """Enter a builder in CASES under its own name."""

    def enter(build: Build) -> Build:
        CASES.append(Case(build.__name__, kind, source, build, platform, limit_mib))
        return build

    return enter


def array(*shape: int, dtype: Any = jnp.float32, platform: str = "tpu") -> jax.ShapeDtypeStruct:
    """An argument on the first device."""
    sharding = SingleDeviceSharding(devices(platform)[0])
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def on_one(fun: Callable[..., Any], *args: Any, platform: str = "tpu", **jit: Any) -> Any:
    """Lower a function for one device."""
    one = SingleDeviceSharding(devices(platform)[0])
    return jax.jit(fun, out_shardings=one, **jit).lower(*args)


def mesh(*axes: str) -> Mesh:
    """The four chips as a mesh of one or two axes."""
    shape = (4,) if len(axes) == 1 else (2, 2)
    return Mesh(np.array(devices("tpu")).reshape(shape), axes)


def sharded(where: NamedSharding, *shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument that is laid over a mesh."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def size(*shape: int, itemsize: int = 4) -> int:
    """Bytes of an array."""
    return math.prod(shape) * itemsize


def adam(params: Any, mu: Any, nu: Any, grads: Any) -> tuple[Any, Any, Any]:
    """One step of Adam on trees of float32."""
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return params, mu, nu


def mlp(params: list[Any], x: Any) -> Any:
    """A stack of dense layers."""
    for w in params:
        x = jnp.tanh(x @ w)
    return x


# --- the state that nobody donated ------------------------------------------------------------


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


@case("donation", "decode loops: the cache comes back")
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
    """The state is donated and comes back laid over one axis of the mesh instead of both."""
    over = mesh("data", "model")
    both, one = NamedSharding(over, P("data", "model")), NamedSharding(over, P("data"))

    def step(state: Any, x: Any) -> Any:
        return {name: w * 0.9 + x[:, None] for name, w in state.items()}

    state = {f"w{i}": sharded(both, 16384, 16384) for i in range(32 if fault else 72)}
    x = sharded(NamedSharding(over, P("data")), 16384)
    out = {name: one if fault else both for name in state}
    return jax.jit(step, donate_argnums=0, out_shardings=out).lower(state, x)


# --- what a mesh keeps whole ------------------------------------------------------------------


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
    x = sharded(NamedSharding(over, P() if fault else P("data")), 262144, 1024)
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
    return jax.jit(load, out_shardings={name: out for name in weights}).lower(weights)


@case("replication", "jax-ml/jax#16679, keras-team/keras-hub#2441")
def unsharded_init(fault: bool) -> Any:
    """Parameters are initialised without an out_sharding and land whole on each chip."""
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


@case("random-bits", "jax-ml/jax#19893, google/flax#3701")
def random_init(fault: bool) -> Any:
    """One huge kernel is drawn at once, and the bits of the generator do not fit beside it."""

    def init(key: Any) -> Any:
        if fault:
            return jax.random.truncated_normal(key, -2, 2, (131072, 32768), jnp.float32)
        keys = jax.random.split(key, 256)

        def draw(k: Any) -> Any:
            return jax.random.truncated_normal(k, -2, 2, (512, 32768), jnp.float32)

        return jax.lax.map(draw, keys)

    return on_one(init, array(2, dtype=jnp.uint32))


# --- what the backward pass keeps -------------------------------------------------------------


def attention(params: Any, x: Any, heads: int, queries: Any = None) -> Any:
    """Plain softmax attention over [batch, time, features], of all tokens or of some queries."""
    batch, _, width = x.shape
    queries = x if queries is None else queries
    shape = (batch, -1, heads, width // heads)
    q = (queries @ params["q"]).reshape(shape)
    k, v = ((x @ params[name]).reshape(shape) for name in ("k", "v"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return out.reshape(batch, -1, width) @ params["o"]


def ffn(params: Any, x: Any) -> Any:
    """The dense half of a block."""
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def decoder_params(width: int, layers: int = 0, **kwargs: Any) -> Any:
    """Shapes of one block, or of a stack of blocks for a scan."""
    lead = (layers,) if layers else ()
    square = array(*lead, width, width, **kwargs)
    return {
        "q": square,
        "k": square,
        "v": square,
        "o": square,
        "up": array(*lead, width, 4 * width, **kwargs),
        "down": array(*lead, 4 * width, width, **kwargs),
    }


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
    return on_one(train_step, [one] * 12, array(131072, 1024), donate_argnums=0)


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


# --- one large buffer -------------------------------------------------------------------------


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


@case("logits", "apple/axlearn#1236, jax-ml/jax#35906")
def full_logits(fault: bool) -> Any:
    """Cross entropy over a vocabulary of 150 thousand, all tokens at once."""

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        hidden = jnp.tanh(params["embed"][tokens] @ params["mix"])

        def token_loss(h: Any, t: Any) -> Any:
            logits = (h @ params["head"]).astype(jnp.float32)
            picked = jnp.take_along_axis(logits, t[..., None], axis=-1)[..., 0]
            return jax.nn.logsumexp(logits, axis=-1) - picked

        if fault:
            return token_loss(hidden, targets).mean()
        chunks = (hidden.reshape(64, -1, hidden.shape[-1]), targets.reshape(64, -1))
        return jax.lax.map(jax.checkpoint(lambda c: token_loss(*c)), chunks).mean()

    def train_step(params: Any, tokens: Any, targets: Any) -> Any:
        grads = jax.grad(loss)(params, tokens, targets)
        return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, grads)

    half = jnp.bfloat16
    params = {
        "embed": array(153600, 1024, dtype=half),
        "mix": array(1024, 1024, dtype=half),
        "head": array(1024, 153600, dtype=half),
    }
    tokens = array(65536, dtype=jnp.int32)
    return on_one(train_step, params, tokens, tokens, donate_argnums=0)


@case("logits", "mesh-transformer-jax: all positions are scored over a tensor parallel mesh")
def scored_prompts(fault: bool) -> Any:
    """No gradient: the table of tokens is looked up, and the prompts are on every chip on purpose."""
    over = mesh("tp")
    whole = NamedSharding(over, P())

    def score(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens]
        x, _ = jax.lax.scan(
            lambda x, w: (x + jax.nn.gelu(x @ w[0]) @ w[1], None), x, (params["up"], params["down"])
        )

        def likelihood(given: Any) -> Any:
            logits = (given[0] @ params["table"].T).astype(jnp.float32)
            likely = jax.nn.log_softmax(logits)
            return jnp.take_along_axis(likely, given[1][..., None], -1)[..., 0]

        return likelihood((x, tokens)) if fault else jax.lax.map(likelihood, (x, tokens))

    columns, rows = NamedSharding(over, P(None, None, "tp")), NamedSharding(over, P(None, "tp"))
    params = {
        "table": sharded(whole, 50400, 4096, dtype=jnp.bfloat16),
        "up": sharded(columns, 4, 4096, 16384, dtype=jnp.bfloat16),
        "down": sharded(rows, 4, 16384, 4096, dtype=jnp.bfloat16),
    }
    tokens = sharded(whole, 48, 2048, dtype=jnp.int32)
    return jax.jit(score, out_shardings=whole).lower(params, tokens)


@case("attention-scores", "erfanzar/EasyDeL#166")
def attention_scores(fault: bool) -> Any:
    """Self attention over 8192 tokens makes the whole matrix of scores."""

    def forward(params: Any, x: Any) -> Any:
        if fault:
            return attention(params, x, 16)
        queries = x.reshape(x.shape[0], 128, -1, x.shape[2]).swapaxes(0, 1)
        out = jax.lax.map(lambda q: attention(params, x, 16, q), queries)
        return out.swapaxes(0, 1).reshape(x.shape)

    square = array(1024, 1024)
    params = {name: square for name in ("q", "k", "v", "o")}
    return on_one(forward, params, array(8, 8192, 1024))


@case("attention-scores", "sokrypton/ColabFold#62: row attention of the MSA stack")
def attention_training(fault: bool) -> Any:
    """A training step of one attention layer over a long sequence."""

    def blocks(params: Any, x: Any) -> Any:
        queries = x.reshape(*x.shape[:1], 512, -1, x.shape[2]).swapaxes(0, 1)
        attend = jax.checkpoint(lambda q: attention(params, x, 8, q))
        return jax.lax.map(attend, queries)

    def loss(params: Any, x: Any) -> Any:
        out = attention(params, x, 8) if fault else blocks(params, x)
        return (out.astype(jnp.float32) ** 2).mean()

    def train_step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, grads)

    square = array(512, 512, dtype=jnp.bfloat16)
    params = {name: square for name in ("q", "k", "v", "o")}
    x = array(8, 8192, 512, dtype=jnp.bfloat16)
    return on_one(train_step, params, x, donate_argnums=0)


@case("one-hot", "google-research/t5x and flax lm1b: labels as one-hot vectors", platform="gpu")
def one_hot_targets(fault: bool) -> Any:
    """The targets of a loss are spelled out as one-hot vectors over the vocabulary."""

    def weigh(table: Any, tokens: Any) -> Any:
        if fault:
            hot = jax.nn.one_hot(tokens, table.shape[0], dtype=jnp.float32)
            return (jnp.cumsum(hot, axis=0) @ table).sum(), hot @ table
        return table[tokens].sum(), table[tokens]

    table = array(131072, 1024, platform="gpu")
    tokens = array(65536, dtype=jnp.int32, platform="gpu")
    return on_one(weigh, table, tokens, platform="gpu")


@case("one-hot", "jax-ml/jax discussions: an embedding by one-hot product")
def one_hot_embedding(fault: bool) -> Any:
    """Tokens become one-hot vectors that multiply the table twice."""

    def embed(table: Any, tokens: Any) -> Any:
        if fault:
            hot = jax.nn.one_hot(tokens, table.shape[0], dtype=jnp.float32)
            counts = jnp.cumsum(hot, axis=0)
            return counts @ table
        return jnp.cumsum(table[tokens], axis=0)

    table = array(131072, 256)
    return on_one(embed, table, array(65536, dtype=jnp.int32))


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
    """A kernel is a product of all pairs, of which the largest is taken too."""

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


@case("stacked-outputs", "uwplasma/JAX-in-Cell#37, arviz#2307")
def scan_history(fault: bool) -> Any:
    """A simulation returns the whole history of its fields from a scan."""

    def simulate(field: Any, kick: Any) -> Any:
        def step(f: Any, k: Any) -> Any:
            f = f + 0.1 * (jnp.roll(f, 1, -1) - 2 * f + jnp.roll(f, -1, -1)) * k
            return f, (f if fault else f.mean())

        return jax.lax.scan(step, field, kick)

    return on_one(simulate, array(2, 1024, 2048), array(1200))


@case("stacked-outputs", "pyro-ppl/numpyro#539: the chain keeps every state")
def mcmc_chain(fault: bool) -> Any:
    """A Markov chain collects its momentum and its gradient beside its position."""

    def run(state: Any, keys: Any) -> Any:
        def energy(q: Any) -> Any:
            return (q**4).sum() + (q**2).sum()

        def step(state: Any, key: Any) -> Any:
            q, p = state
            g = jax.grad(energy)(q)
            p = 0.9 * p - 0.01 * g + 0.1 * jax.random.normal(key, p.shape)
            q = q + 0.01 * p
            return (q, p), ({"position": q, "momentum": p, "gradient": g} if fault else q.mean())

        return jax.lax.scan(step, state, keys)

    q = array(64, 16384)
    return on_one(run, (q, q), array(2000, 2, dtype=jnp.uint32))


@case("samples", "juanitorduz/numpyro_forecast#64, pyro-ppl/numpyro#1503")
def posterior_predictive(fault: bool) -> Any:
    """All draws of a posterior predictive are made in one allocation."""

    def predictive(key: Any, loc: Any, scale: Any) -> Any:
        def draw(k: Any) -> Any:
            noise = jax.random.normal(k, loc.shape)
            return loc + scale * noise

        keys = jax.random.split(key, 1000)
        if fault:
            return jax.vmap(draw)(keys)
        return jax.lax.map(lambda k: draw(k).mean(), keys)

    panel = array(365, 16384)
    return on_one(predictive, array(2, dtype=jnp.uint32), panel, panel)


@case("samples", "pymc-devs/pymc#5664, kokabsc/gwkokab#451: log likelihood of every draw")
def vmapped_log_likelihood(fault: bool) -> Any:
    """The log likelihood is vmapped over all posterior draws and summed afterwards."""

    def log_likelihood(draws: Any, x: Any, y: Any) -> Any:
        def one(draw: Any) -> Any:
            mean = x @ draw["beta"] + draw["alpha"]
            z = jnp.sort((y - mean) / jnp.exp(draw["sigma"]))
            return jax.nn.logsumexp(-0.5 * z**2)

        if fault:
            return jax.vmap(one)(draws)
        return jax.lax.map(one, draws)

    draws = {"beta": array(8000, 32), "alpha": array(8000), "sigma": array(8000)}
    return on_one(log_likelihood, draws, array(524288, 32), array(524288))


@case("samples", "netket/netket#1740: the gradient of each sample is kept")
def sample_gradients(fault: bool) -> Any:
    """vmap over a gradient makes one for each sample; the fix uses each as it is made."""

    def log_psi(w: Any, x: Any) -> Any:
        return jnp.log(jnp.cosh(jnp.tanh(x @ w[0]) @ w[1])).sum()

    def update(w: Any, xs: Any) -> Any:
        def norm(x: Any) -> Any:
            grads = jax.grad(log_psi)(w, x)
            return sum((jnp.sort(g, axis=0) ** 2).sum() for g in grads)

        return jax.vmap(norm)(xs) if fault else jax.lax.map(norm, xs)

    return on_one(update, (array(1024, 512), array(512, 1024)), array(4096, 1024))


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


@case("unrolled-loop", "HomebrewML/Olmax#25: chunks in a Python loop")
def unrolled_chunks(fault: bool) -> Any:
    """A sum over chunks is a Python loop, so that the compiler keeps all chunks at once."""

    def total(weights: Any, x: Any) -> Any:
        def chunk(w: Any) -> Any:
            return jnp.sort(x @ w, axis=-1)

        if fault:
            parts = [chunk(weights[i]) for i in range(24)]
            return functools.reduce(jnp.add, parts) / jnp.stack([p.max() for p in parts]).max()

        def body(carry: Any, w: Any) -> Any:
            part = chunk(w)
            return (carry[0] + part, jnp.maximum(carry[1], part.max())), None

        zero = jnp.zeros((x.shape[0], weights.shape[2]))
        summed, top = jax.lax.scan(body, (zero, jnp.float32(0)), weights)[0]
        return summed / top

    return on_one(total, array(24, 512, 8192), array(24576, 512))


@case("layout-copy", "vllm-project/tpu-inference#3366: rows of 64 in a table", limit_mib=8192)
def narrow_table(fault: bool) -> Any:
    """Rows are read from a table of 64 columns, which lies the other way round."""

    def lookup(table: Any, tokens: Any) -> Any:
        return table[tokens]

    table = array(1 << 24, 64 if fault else 128)
    return on_one(lookup, table, array(4096, dtype=jnp.int32))


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
        x, y, z = flat.reshape(3, -1)
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
