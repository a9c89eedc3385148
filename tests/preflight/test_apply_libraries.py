"""Changed steps of flax.nnx.jit and equinox.filter_jit, which keep arrays in modules."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax import nnx

from hbmwatch import fits, watch_hbm
from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes import BY_NAME
from hbmwatch._preflight.changes.change import Asked, Edit
from hbmwatch._preflight.changes.donation import Donate
from hbmwatch._preflight.changes.tracing import call_of
from tests.preflight.changes.steps import shapes

WIDTH = 16
OPTIMIZER = optax.sgd(0.01, momentum=0.9)
X = jax.random.normal(jax.random.key(1), (64, WIDTH))
TRACES: list[str] = []


class Block(nnx.Module):
    """With statistics and a dropout, which the step updates in the module."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 32, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(32, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """The block."""
        return x + self.down(self.dropout(jnp.tanh(self.norm(self.up(x)))))


class Blocks(nnx.Module):
    """Three blocks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second, self.third = (Block(rngs) for _ in range(3))

    def __call__(self, x: Any) -> Any:
        """All blocks."""
        return self.third(self.second(self.first(x)))


def updating(model: Any, optimizer: Any, x: Any) -> Any:
    """Updates the model and the optimizer in place; returns the loss and the gradients."""
    TRACES.append("nnx")
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - jnp.sin(x)) ** 2))(model)
    optimizer.update(model, grads)
    return loss, grads


nnx_step: Any = nnx.jit(updating)


def trained_nnx(step: Any) -> list[Any]:
    """What ten steps return, and the modules afterwards."""
    model = Blocks(nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
    returned = [copied(step(model, optimizer, X + i / 10)) for i in range(10)]
    keyless = nnx.state((model, optimizer), nnx.Not(nnx.RngState))
    return [*returned, copied(keyless)]


class EquinoxBlock(eqx.Module):
    """Two layers, and a function that is no array."""

    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: Callable[[Any], Any]

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.up = eqx.nn.Linear(WIDTH, 32, key=one)
        self.down = eqx.nn.Linear(32, WIDTH, key=two)
        self.activation = jnp.tanh

    def __call__(self, x: Any) -> Any:
        """The block, of one row."""
        return x + self.down(self.activation(self.up(x)))


def filtered(blocks: Any, state: Any, x: Any) -> Any:
    """Returns the new model, the new state, the loss and the gradients."""
    TRACES.append("equinox")

    def loss_of(blocks: Any) -> Any:
        h = x
        for block in blocks:
            h = jax.vmap(block)(h)
        return jnp.mean((h - jnp.sin(x)) ** 2)

    gradient: Any = eqx.filter_value_and_grad
    loss, grads = gradient(loss_of)(blocks)
    updates, state = OPTIMIZER.update(grads, state, blocks)
    return eqx.apply_updates(blocks, updates), state, loss, grads


equinox_step: Any = eqx.filter_jit(filtered)


def equinox_start() -> tuple[Any, Any]:
    """Fresh blocks and state."""
    blocks = [EquinoxBlock(key) for key in jax.random.split(jax.random.key(0), 3)]
    return blocks, OPTIMIZER.init(eqx.filter(blocks, eqx.is_inexact_array))


def trained_equinox(step: Any) -> list[Any]:
    """What ten steps return."""
    blocks, state = equinox_start()
    returned = []
    for i in range(10):
        blocks, state, loss, grads = step(blocks, state, X + i / 10)
        returned.append(copied(eqx.filter((loss, grads, blocks, state), eqx.is_array)))
    assert blocks[0].activation is jnp.tanh
    return returned


def copied(tree: Any) -> list[Any]:
    """The arrays, which a later step may donate."""
    return [np.array(leaf) for leaf in jax.tree.leaves(tree)]


class Library(NamedTuple):
    """A step, its arguments, and a training run."""

    step: Any
    args: Callable[[], tuple[Any, ...]]
    trained: Callable[[Any], list[Any]]


def nnx_arguments() -> tuple[Any, ...]:
    """Arguments of the step of nnx."""
    model = Blocks(nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
    return model, optimizer, X


LIBRARIES = {
    "nnx": Library(nnx_step, nnx_arguments, trained_nnx),
    "equinox": Library(equinox_step, lambda: (*equinox_start(), X), trained_equinox),
}


@functools.cache
def expected(name: str) -> list[Any]:
    """The run without a change."""
    return LIBRARIES[name].trained(LIBRARIES[name].step)


def first_edit(name: str, change: str) -> Edit:
    """What a change proposes first for the step of a library."""
    call = call_of(LIBRARIES[name].step, LIBRARIES[name].args(), {}, None)
    return next(BY_NAME[change].edits(call, None, Asked()))


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    """All arrays are equal, to 1e-5 of the maximum of each."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    assert len(pairs) > 100
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("change", ["checkpoint", "pieces", "donation"])
def test_ten_steps_give_the_same_loss_gradients_and_state(name: str, change: str) -> None:
    """Also where modules are updated in place. The step is traced once for all steps."""
    library, wanted = LIBRARIES[name], expected(name)
    donated = Donate(what="", code="", arguments=(0, 1, 2))
    changed = apply(library.step, (donated if change == "donation" else first_edit(name, change),))
    TRACES.clear()
    found = library.trained(changed)

    assert_alike(found, wanted)
    assert len(TRACES) <= (2 if change == "checkpoint" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_changed_step_stays_watched_and_can_be_lowered(name: str) -> None:
    """It is watched if the step was, and `fits` can be asked about it."""
    library, edit = LIBRARIES[name], first_edit(name, "pieces")
    changed = apply(library.step, (edit,))
    watched = apply(watch_hbm(library.step), (edit,))

    assert hasattr(watched, "watched_alike")
    assert (changed == library.step, hash(changed)) == (True, hash(library.step))
    assert_alike(library.trained(watched), expected(name))
    assert fits(changed, *library.args(), limit_bytes=2**30).fits


@pytest.mark.slow
def test_a_changed_step_of_nnx_can_be_copied() -> None:
    """By its step and its changes; it cannot be pickled, because what nnx.jit returns cannot."""
    changed = copy.copy(apply(nnx_step, (first_edit("nnx", "pieces"),)))
    loss, _ = changed(*nnx_arguments())

    np.testing.assert_allclose(loss, nnx_step(*nnx_arguments())[0], rtol=1e-5)


class Doubling(eqx.Module):
    """A module whose method is jitted."""

    weight: Any

    @eqx.filter_jit
    def step(self, x: Any) -> Any:
        """Large values, then a sum."""
        return jnp.sum(jnp.tanh(jnp.tanh(x @ self.weight) @ self.weight.T))


@pytest.mark.slow
def test_a_jitted_method_of_equinox_keeps_its_module() -> None:
    """The module is the first argument of the changed step."""
    module = Doubling(jnp.ones((WIDTH, 512)) / WIDTH)
    step: Any = module.step
    edit = next(BY_NAME["pieces"].edits(call_of(step, shapes((X,)), {}, None), None, Asked()))

    np.testing.assert_allclose(apply(step, (edit,))(X), step(X), rtol=1e-5)
