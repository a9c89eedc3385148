"""Training steps as people write them, in pieces: the loss, the gradients and the new state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hbmwatch._preflight import pieces
from tests.preflight.pieces.evaluate import evaluate
from tests.preflight.pieces.test_property import differ, flat

optax = pytest.importorskip("optax")

Step = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(*shape: int) -> Any:
    """Normal numbers, the same for the same shape."""
    random = np.random.RandomState(sum(shape))
    return (random.randn(*shape) * 0.3).astype(np.float32)


def tokens(*shape: int) -> Any:
    """Token numbers below 12."""
    return (np.arange(int(np.prod(shape))) * 7 % 12).astype(np.int32).reshape(shape)


def attention(x: Any, w: Any) -> Any:
    """Causal attention of two heads."""
    q, k, v = (jnp.einsum("btc,chd->bhtd", x, w[name]) for name in "qkv")
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bhkd,hdc->bqc", weights, v, w["o"])


def block(x: Any, w: Any) -> Any:
    """One layer of a transformer."""
    x = x + attention((x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 0.1), w)
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def weights(*layers: int) -> Any:
    """The weights of one layer, or of stacked ones."""
    heads = dict.fromkeys("qkv", (8, 2, 4))
    shapes = {**heads, "o": (2, 4, 8), "up": (8, 16), "down": (16, 8)}
    return {name: normal(*layers, *shape) for name, shape in shapes.items()}


def cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean over all tokens."""
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def transformer(scanned: bool) -> Step:
    """A transformer with adamw: layers one by one, or a scan over checkpointed ones."""
    layers = weights(2) if scanned else [weights(), weights()]
    params = {"e": normal(12, 8), "layers": layers, "head": normal(8, 12)}
    optimizer = optax.adamw(1e-2)

    def loss(params: Any, batch: Any) -> Any:
        x = params["e"][batch[:, :-1]]
        if scanned:
            layer = jax.checkpoint(lambda x, w: (block(x, w), None))
            x, _ = lax.scan(layer, x, params["layers"])
        else:
            for w in params["layers"]:
                x = block(x, w)
        return cross_entropy(x @ params["head"], batch[:, 1:])

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return value, grads, optax.apply_updates(params, updates), state

    return step, (params, optimizer.init(params), tokens(4, 7))


def batch_norm_and_dropout() -> Step:
    """Statistics over the batch, dropout from a key, and a convolution."""

    def loss(p: Any, x: Any, y: Any, key: Any) -> Any:
        h = lax.conv_general_dilated(x, p["c"], (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)
        mean, var = h.mean((0, 1, 2)), h.var((0, 1, 2))
        h = jax.nn.relu((h - mean) / jnp.sqrt(var + 1e-3))
        h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0.0)
        return cross_entropy(h.mean((1, 2)) @ p["d"], y), (mean, var)

    def step(p: Any, x: Any, y: Any, key: Any) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(p, x, y, key)

    params = {"c": normal(3, 3, 2, 4), "d": normal(4, 5)}
    return step, (params, normal(6, 4, 4, 2), tokens(6) % 5, jax.random.key(1))


CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


def per_example_gradients() -> Step:
    """Each example's gradient, clipped, and their sum."""

    def one(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    def step(w: Any, xs: Any) -> Any:
        grads = jax.vmap(jax.grad(one), (None, 0))(w, xs)
        norms = jnp.sqrt(jnp.sum(grads**2, axis=(1, 2), keepdims=True))
        return jnp.sum(grads / jnp.maximum(norms, 0.1), axis=0)

    return step, (normal(6, 4), normal(8, 6))


def pairwise() -> Step:
    """The gradient of a function of all distances."""

    def energy(x: Any) -> Any:
        squares = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        return jnp.sum(jnp.exp(-squares) * (1 - jnp.eye(x.shape[0])))

    return jax.value_and_grad(energy), (normal(9, 3),)


def jacobian() -> Step:
    """A Jacobian in reverse, and a Hessian's trace."""

    def network(w: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    def step(w: Any, x: Any) -> Any:
        rows = jax.jacrev(network, 1)(w, x[0])
        traces = jax.vmap(lambda x: jnp.trace(jax.hessian(lambda x: network(w, x).sum())(x)))(x)
        return rows, traces

    return step, (normal(6, 6), normal(4, 6))


def graph_attention() -> Step:
    """A softmax over the edges that end in each node: maxima and sums over segments."""
    nodes, edges, heads = 12, 48, 2

    def attend(p: Any, x: Any, senders: Any, receivers: Any) -> Any:
        z = (x @ p["w"]).reshape(nodes, heads, -1)
        scores = jax.nn.leaky_relu((z * p["a"]).sum(-1)[senders] + (z * p["b"]).sum(-1)[receivers])
        most = jax.ops.segment_max(scores, receivers, nodes)
        parts = jnp.exp(scores - lax.stop_gradient(most)[receivers])
        sums = jax.ops.segment_sum(parts, receivers, nodes)
        weights = parts / (sums[receivers] + 1e-6)
        return jax.ops.segment_sum(weights[..., None] * z[senders], receivers, nodes)

    def step(params: Any, x: Any, senders: Any, receivers: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(jnp.tanh(attend(params, x, senders, receivers)) ** 2)

        return jax.value_and_grad(loss)(params)

    params = {"w": normal(8, 8), "a": normal(heads, 4), "b": normal(heads, 4)}
    ends = (np.arange(2 * edges) * 5 % nodes).astype(np.int32).reshape(2, edges)
    return step, (params, normal(nodes, 8), *ends)


def linen() -> Step:
    """A module of flax linen with batch norm and dropout."""
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            x = nn.BatchNorm(use_running_average=False)(nn.Dense(8)(x))
            return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(nn.relu(x)))

    net = Net()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    state = net.init(keys, normal(6, 4))

    def step(state: Any, x: Any, y: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            rest = {"batch_stats": state["batch_stats"]}
            variables, rngs = {"params": params, **rest}, {"dropout": key}
            out, new = net.apply(variables, x, rngs=rngs, mutable=["batch_stats"])
            return cross_entropy(out, y), new

        return jax.value_and_grad(loss, has_aux=True)(state["params"])

    return step, (state, normal(6, 4), tokens(6) % 3, jax.random.key(2))


def nnx() -> Step:
    """A module of flax nnx, split into its state."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.one, self.two = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
            self.norm = nnx.LayerNorm(8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.two(nnx.gelu(self.norm(self.one(x))))

    graph, state = nnx.split(Net(nnx.Rngs(0)))

    def step(state: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda s: cross_entropy(nnx.merge(graph, s)(x), y))(state)

    return step, (state, normal(6, 4), tokens(6) % 3)


def equinox() -> Step:
    """A module of equinox, mapped over the batch."""
    eqx = pytest.importorskip("equinox")
    net = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
    arrays, rest = eqx.partition(net, eqx.is_array)

    def step(arrays: Any, x: Any, y: Any) -> Any:
        def loss(arrays: Any) -> Any:
            return cross_entropy(jax.vmap(eqx.combine(arrays, rest))(x), y)

        return jax.value_and_grad(loss)(arrays)

    return step, (arrays, normal(6, 4), tokens(6) % 3)


STEPS: dict[str, Callable[[], Step]] = {
    "transformer": lambda: transformer(False),
    "scanned transformer": lambda: transformer(True),
    "batch norm and dropout": batch_norm_and_dropout,
    "per-example gradients": per_example_gradients,
    "pairwise": pairwise,
    "jacobian": jacobian,
    "graph attention": graph_attention,
    "linen": linen,
    "nnx": nnx,
    "equinox": equinox,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_in_pieces_gives_the_same_values(name: str) -> None:
    """The loss, each gradient and each part of the new state, for the most promising cuts."""
    function, args = STEPS[name]()
    closed = jax.make_jaxpr(function)(*args)
    values = flat(args)
    expected = evaluate(closed, values)
    ran = 0
    for k, seed in enumerate(pieces.seeds(closed, most=16)):
        n = 2 if seed.size % 2 == 0 else 3
        try:
            rewritten = pieces.rewrite(closed, seed, min(n, seed.size), strided=False)
        except pieces.Refused:
            continue
        ran += 1
        actual = evaluate(rewritten.jaxpr, values)
        found = [differ(*pair) for pair in zip(expected, actual, strict=True)]
        assert not any(found), (k, seed, found)
    assert ran


@pytest.mark.slow
def test_a_transformer_in_pieces_of_the_batch_has_one_stage() -> None:
    """The whole step, forward and backward, is one loop over parts of the batch."""
    for scanned in (False, True):
        function, args = transformer(scanned)
        closed = jax.make_jaxpr(function)(*args)
        batch = len(jax.tree.leaves(args)) - 1
        seeds = pieces.seeds(closed, most=1000)
        seed = next(s for s in seeds if s.argument == batch and s.dimension == 0)

        assert pieces.rewrite(closed, seed, 2).stages == 1


@pytest.mark.slow
@pytest.mark.parametrize("remakes", [0, 8, 128])
def test_graph_attention_runs_in_pieces_of_the_edges(remakes: int) -> None:
    """The loss and the gradients stay, also where each loop makes its values again."""
    function, args = graph_attention()
    closed = jax.make_jaxpr(function)(*args)
    values = flat(args)
    seed = next(s for s in pieces.seeds(closed, most=1000) if s.size == 48)
    made = pieces.rewrite(closed, seed, 4, remakes=remakes)
    pairs = zip(evaluate(closed, values), evaluate(made.jaxpr, values), strict=True)

    assert [differ(*pair) for pair in pairs] == [None] * 4
    assert made.stages > 2
