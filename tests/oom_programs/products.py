"""Programs with a huge product: logits, attention scores, one-hot matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.oom_programs.base import array, attention, case, mesh, on_one, sharded


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
    """No gradient: tokens are looked up in a table, and every chip has the prompts on purpose."""
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
    params = dict.fromkeys(("q", "k", "v", "o"), square)
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
    params = dict.fromkeys(("q", "k", "v", "o"), square)
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
