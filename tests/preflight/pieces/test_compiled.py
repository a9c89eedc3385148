"""Programs in pieces, compiled by XLA: less memory, the same values, donation as before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from hbmwatch._preflight import pieces
from tests.preflight.pieces.test_property import differ


def step(params: Any, x: Any, y: Any) -> Any:
    """A large vocabulary: the loss, and the new parameters."""

    def loss(params: Any) -> Any:
        logits = jnp.tanh(x @ params["w"]) @ params["head"]
        chosen = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments() -> tuple[Any, ...]:
    """A batch of 512 rows, and 2048 words."""
    random = np.random.RandomState(0)
    params = {"w": random.randn(16, 16), "head": random.randn(16, 2048) * 0.1}
    rows, targets = random.randn(512, 16), random.randint(0, 2048, 512)
    return jax.tree.map(np.float32, params), np.float32(rows), np.int32(targets)


@pytest.mark.slow
def test_the_temporaries_shrink_and_the_values_stay() -> None:
    """Logits of 4 MiB are never whole; the loss and the new parameters are those of the step."""
    args = arguments()
    traced = jax.jit(step, donate_argnums=0).trace(*args)
    seed = next(s for s in pieces.seeds(traced.jaxpr) if s.dimension == 0)
    rewritten = pieces.rewrite(traced.jaxpr, seed, 16)
    flat = jax.tree.leaves(args)

    before = jax.jit(jaxpr_as_fun(traced.jaxpr)).lower(*flat).compile()
    after = jax.jit(jaxpr_as_fun(rewritten.jaxpr)).lower(*flat).compile()
    pairs = zip(before(*flat), after(*flat), strict=True)

    assert [differ(np.asarray(a), np.asarray(b)) for a, b in pairs] == [None, None, None]
    assert rewritten.stages == 1
    whole: Any = before.memory_analysis()
    parts: Any = after.memory_analysis()
    assert whole.temp_size_in_bytes > 4 * 2**20
    assert parts.temp_size_in_bytes < whole.temp_size_in_bytes / 4


def test_donated_arguments_keep_their_places() -> None:
    """The inputs and outputs are in the same order, so that the same numbers donate them."""
    args = arguments()
    closed = jax.make_jaxpr(step)(*args)
    rewritten = pieces.rewrite(closed, pieces.seeds(closed)[0], 4)
    flat = jax.tree.leaves(args)

    donating = jax.jit(jaxpr_as_fun(rewritten.jaxpr), donate_argnums=(0, 1)).lower(*flat)
    sizes: Any = donating.compile().memory_analysis()

    assert rewritten.jaxpr.in_avals == closed.in_avals
    assert rewritten.jaxpr.out_avals == closed.out_avals
    assert sizes.alias_size_in_bytes == sum(x.nbytes for x in flat[:2])


@pytest.mark.slow
def test_narrow_sums_are_added_in_float32() -> None:
    """A gradient in bfloat16 that comes from 64 pieces is as near as one that comes at once."""
    x = jnp.full((64, 4), 1.0, jnp.bfloat16)
    closed = jax.make_jaxpr(lambda w: jnp.tanh(x @ w).astype(jnp.bfloat16).sum(0))(
        jnp.full((4, 8), 0.26, jnp.bfloat16)
    )
    seed = next(s for s in pieces.seeds(closed) if s.primitive == "dot_general" and not s.dimension)
    rewritten = pieces.rewrite(closed, seed, 64)
    w = jnp.full((4, 8), 0.26, jnp.bfloat16)

    (whole,) = jaxpr_as_fun(closed)(w)
    (parts,) = jaxpr_as_fun(rewritten.jaxpr)(w)

    # The exact sum is 49.8. In bfloat16 alone, 64 additions would end far below.
    assert np.abs(np.float32(whole) - np.float32(parts)).max() <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("partitionable", [True, False])
def test_a_draw_from_one_key_is_made_piece_by_piece(partitionable: bool) -> None:
    """The bits are never whole, and the numbers are those of the whole draw."""
    with jax.threefry_partitionable(partitionable):

        def draw(key: Any) -> Any:
            return jax.random.truncated_normal(key, -2, 2, (64, 32))

        closed = jax.make_jaxpr(draw)(jax.random.key(0))
        rewritten = pieces.rewrite(closed, pieces.seeds(closed)[0], 4)
        (whole,) = jax.jit(jaxpr_as_fun(closed))(jax.random.key(0))
        (parts,) = jax.jit(jaxpr_as_fun(rewritten.jaxpr))(jax.random.key(0))

    assert "random_bits" not in {e.primitive.name for e in rewritten.jaxpr.jaxpr.eqns}
    np.testing.assert_array_equal(whole, parts)


def test_steps_with_ordered_effects_are_refused() -> None:
    """Their order across the stages would not be kept."""

    def prints(x: Any) -> Any:
        jax.debug.print("{}", x.sum(), ordered=True)
        return x @ x

    closed = jax.make_jaxpr(prints)(jnp.ones((4, 4)))

    with pytest.raises(pieces.Refused) as refused:
        pieces.seeds(closed)

    assert str(refused.value) == "effects must keep their order: OrderedDebugEffect"


def test_an_unordered_print_still_prints(capfd: Any) -> None:
    """It is done once, with the whole value."""

    def prints(x: Any) -> Any:
        y = jnp.tanh(x @ x)
        jax.debug.print("sum {}", y.sum())
        return y @ x

    closed = jax.make_jaxpr(prints)(jnp.eye(4))
    seed = next(s for s in pieces.seeds(closed) if s.primitive == "dot_general")
    jax.jit(jaxpr_as_fun(pieces.rewrite(closed, seed, 2).jaxpr))(jnp.eye(4))[0].block_until_ready()
    jax.effects_barrier()

    assert capfd.readouterr().out.count("sum 3.04") == 1


@pytest.mark.parametrize(("n", "strided"), [(4, False), (4, True), (5, False)])
def test_pieces_take_the_memory_of_donated_arguments(n: int, strided: bool) -> None:
    """A new state is written over the old one, piece by piece, and has its values."""

    def update(state: Any, velocity: Any, x: Any) -> Any:
        force = jnp.tanh(state @ x) @ x.T
        return state + force, 0.9 * velocity + force, (force**2).sum()

    random = np.random.RandomState(0)
    # 128 KiB each: a product takes 64 KiB of its own on the CPU of jax 0.12.
    args = [np.float32(random.randn(*shape)) for shape in ((512, 64), (512, 64), (64, 64))]
    closed = jax.make_jaxpr(update)(*args)
    seed = pieces.seeds(closed)[0]
    sizes = []
    assert (seed.size, seed.dimension) == (512, 0)
    for donated in ((), (0, 1)):
        made = pieces.rewrite(closed, seed, n, strided=strided, donated=donated)
        found = jaxpr_as_fun(made.jaxpr)(*args)
        pairs = zip(update(*args), found, strict=True)
        assert [differ(np.asarray(a), np.asarray(b)) for a, b in pairs] == [None] * 3
        lowered = jax.jit(jaxpr_as_fun(made.jaxpr), donate_argnums=(0, 1)).lower(*args)
        memory: Any = lowered.compile().memory_analysis()
        assert memory.alias_size_in_bytes == 2 * args[0].nbytes
        sizes.append(memory.temp_size_in_bytes)

    assert sizes[1] <= sizes[0] - args[0].nbytes


@pytest.mark.slow
def test_what_two_loops_need_is_made_in_both() -> None:
    """Rows and columns of all scores, as for CLIP: the scores are never whole, the values stay."""

    def step(weights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            scores = (x @ weights[0]) @ (y @ weights[1]).T
            own = jnp.arange(len(x))[:, None]
            rows, columns = (
                (jax.nn.logsumexp(s, 1) - jnp.take_along_axis(s, own, 1)[:, 0]).mean()
                for s in (scores, scores.T)
            )
            return (rows + columns) / 2

        return jax.value_and_grad(loss)(weights)

    random = np.random.RandomState(0)
    shapes = (16, 8), (16, 8), (1024, 16), (1024, 16)
    a, b, x, y = (np.float32(random.randn(*shape) / 4) for shape in shapes)
    closed = jax.make_jaxpr(step)((a, b), x, y)
    flat = [a, b, x, y]
    value, grads = step((a, b), x, y)
    seed = pieces.seeds(closed)[0]
    temporaries = []
    for remakes in (0, 8):
        made = pieces.rewrite(closed, seed, 16, remakes=remakes)
        compiled = jax.jit(jaxpr_as_fun(made.jaxpr)).lower(*flat).compile()
        pairs = zip((value, *grads), compiled(*flat), strict=True)
        assert [differ(np.asarray(p), np.asarray(q)) for p, q in pairs] == [None] * 3
        assert made.stages > 1
        memory: Any = compiled.memory_analysis()
        temporaries.append(memory.temp_size_in_bytes)

    assert temporaries[0] > 4 * 2**20  # scores of 4 MiB
    assert temporaries[1] < 2 * 2**20
