"""What the plan proposes to donate, and how it says so."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._preflight.changes import BY_NAME
from hbmwatch._preflight.changes.call import NothingToChange
from hbmwatch._preflight.changes.change import Asked
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.targets import target_of
from hbmwatch._preflight.tries import Tries
from tests.preflight.changes.steps import arguments, first_edit, shapes, train_step

F32 = jnp.float32
X = jax.ShapeDtypeStruct((4096, 64), F32)


def test_a_tree_that_is_returned_is_donated_on_a_condition() -> None:
    """A cache whose rows move; not what the result does not depend on, or what has another form."""

    def step(cache: Any, order: Any, mask: Any, x: Any) -> Any:
        moved = jax.tree.map(lambda rows: rows[order], cache)
        return moved, {"scores": x @ x.T}, jnp.ones_like(mask)

    cache = {"k": X, "v": X}
    order = jax.ShapeDtypeStruct((4096,), jnp.int32)
    edit = first_edit("donation", call_of(jax.jit(step), (cache, order, X, X), {}, None))

    assert edit.what == "donating cache['k'], cache['v']"
    assert edit.code == (
        "jax.jit(step, donate_argnames='cache'), and use only the returned values afterwards "
        "(only if nothing needs the old cache after the call)"
    )


def test_arguments_have_the_names_of_the_user() -> None:
    """equinox passes lists of arrays to jax.jit; the edits name the fields of the model."""
    equinox: Any = pytest.importorskip("equinox")

    def update(x: Any, model: Any) -> Any:
        grads = equinox.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
        return equinox.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    model = equinox.nn.MLP(64, 64, 64, 2, key=jax.random.key(0))
    call = call_of(equinox.filter_jit(update), (jnp.ones((8, 64)), model), {}, None)
    edit = first_edit("donation", call)
    pairs = {call.arguments[i].name: call.outputs[o].path for i, o in call.updated().items()}

    assert call.arguments[1].name == "model.layers[0].weight"
    assert edit.what.startswith("donating model.layers[0].weight, model.layers[0].bias and ")
    assert edit.code.startswith('equinox.filter_jit(step, donate="all-except-first"), and use')
    assert pairs["model.layers[1].weight"].endswith(".layers[1].weight")


@pytest.mark.slow
def test_a_donation_that_cannot_be_enough_is_not_tried() -> None:
    """The state is 384 KiB of 66 MiB; it is donated if the step is over the limit by less."""
    state, _ = shapes(arguments())
    call = call_of(jax.jit(train_step), (state, jax.ShapeDtypeStruct((4096, 128), F32)), {}, None)
    _, facts = Tries(target_of(call.lowered), time.monotonic() + 600, 600, 1).compile(
        call, "assigned"
    )
    assert facts is not None

    def first(limit_bytes: int) -> Any:
        return next(BY_NAME["donation"].edits(call, facts, Asked(limit_bytes=limit_bytes)))

    assert first(facts.peak_bytes - 1).what.startswith("donating state['params']")
    with pytest.raises(NothingToChange, match=r"^what the step could donate, 384 KiB, is too"):
        first(facts.peak_bytes // 2)
