"""Pieces inside loops and checkpoints: the values stay, and the largest value shrinks."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.changes.in_bodies import BODIES, BodiesInPieces
from hbmwatch._preflight.changes.tracing import call_of
from tests.preflight.changes.steps import differences

LENGTH, WIDTH, LAYERS = 96, 8, 3


def block(x: Any, p: Any) -> Any:
    """Attention over one long sequence, so that nothing but the queries can be cut."""
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), q @ k.T, -1e9)
    x = x + jax.nn.softmax(scores, -1) @ v
    return x + jnp.tanh(x @ p["up"]) @ p["down"], x.sum()


@functools.partial(jax.jit, static_argnames="checkpointed")
def scanned(params: Any, x: Any, *, checkpointed: bool) -> Any:
    """The loss and the gradients of a scan over layers."""
    body = jax.checkpoint(block) if checkpointed else block

    def loss(params: Any) -> Any:
        out, sums = jax.lax.scan(body, x, params)
        return (out**2).mean() + (sums**2).mean()

    return jax.value_and_grad(loss)(params)


@jax.jit
def repeated(params: Any, x: Any) -> Any:
    """A while loop over steps, in a cond."""
    first = jax.tree.map(lambda p: p[0], params)

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, block(c[1], first)[0]), (0, x)
        )

    return jax.lax.cond(x[0, 0] > -1e9, loop, lambda x: (1, x), x)


def arguments() -> tuple[Any, Any]:
    """Weights of all layers, and a sequence."""
    keys = iter(jax.random.split(jax.random.key(0), 4))
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    params = {
        name: jax.random.normal(next(keys), (LAYERS, *shape)) / WIDTH**0.5
        for name, shape in shapes.items()
    }
    return params, jax.random.normal(next(keys), (LENGTH, WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "options", "bodies"),
    [
        (scanned, {"checkpointed": False}, 1),
        (scanned, {"checkpointed": True}, 2),
        (repeated, {}, 1),
    ],
)
def test_bodies_in_pieces_give_the_same_values(step: Any, options: Any, bodies: int) -> None:
    """Loss and gradients; the edits pickle, and the scores of all queries are never made."""
    args = arguments()
    call = call_of(step, args, options, None)
    edits = list(BODIES.edits(call, None, Asked()))
    expected = step(*args, **options)

    assert edits
    for edit in edits[:2]:
        changed = pickle.loads(pickle.dumps(edit)).on(call)
        assert isinstance(edit, BodiesInPieces)
        assert len(edit.cuts) == bodies
        assert estimated(changed) < estimated(call)
        assert changed.jaxpr.out_avals == call.jaxpr.out_avals
        assert differences(apply(step, (edit,))(*args, **options), expected) == {}
    assert edits[0].what.endswith(", inside loops and checkpoints")
    assert edits[0].where[0].startswith("test_in_bodies.py:")


def estimated(call: Call) -> int:
    """A rough peak."""
    return estimated_peak_bytes(call.jaxpr, fused=True)


def test_a_program_without_loops_has_no_bodies() -> None:
    """It says so."""
    call = call_of(jax.jit(lambda x: x @ x), (jnp.ones((8, 8)),), {}, None)

    with pytest.raises(NothingToChange, match="no loop and no checkpoint"):
        next(BODIES.edits(call, None, Asked()))


@pytest.mark.slow
def test_a_body_in_a_body_is_cut_too() -> None:
    """Checkpoints in a loop in a loop: inner bodies are cut first, and the gradients stay."""

    @jax.jit
    def nested(params: Any, x: Any) -> Any:
        @jax.checkpoint
        def twice(x: Any, p: Any) -> Any:
            return jax.lax.fori_loop(0, 2, lambda _, x: jax.checkpoint(block)(x, p)[0], x), None

        def loss(params: Any) -> Any:
            return (jax.lax.scan(twice, x, params)[0] ** 2).mean()

        return jax.value_and_grad(loss)(params)

    params, x = arguments()
    args = jax.tree.map(lambda p: p / 4, params), x  # rounding grows with larger weights
    call = call_of(nested, args, {}, None)
    expected = nested(*args)
    edits = list(BODIES.edits(call, None, Asked()))[:2]

    assert edits
    for edit in edits:
        assert isinstance(edit, BodiesInPieces)
        depths = [len(cut.path) for cut in edit.cuts]
        assert depths == sorted(depths, reverse=True)
        assert depths[0] > depths[-1]
        assert estimated(edit.on(call)) < estimated(call)
        assert differences(apply(nested, (edit,))(*args), expected) == {}
