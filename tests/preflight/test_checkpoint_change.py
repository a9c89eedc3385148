"""The change that puts jax.checkpoint around the calls of a function."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Fit
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked
from hbmwatch._preflight.changes.checkpoint import CHECKPOINT
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.targets import target_of
from hbmwatch._preflight.tries import Tried, Tries
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport

S = jax.ShapeDtypeStruct
WEIGHTS = [S((16, 16), jnp.float32)] * 6
X = S((512, 16), jnp.float32)


def layer(h: Any, w: Any) -> Any:
    """One of six layers."""
    return jnp.tanh(jnp.exp(-jnp.sin(h @ w))) + h


@functools.partial(jax.jit, donate_argnums=0, static_argnames="scale")
def step(weights: Any, x: Any, *, scale: float) -> Any:
    """A step that donates its weights."""

    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = layer(h, w)
        return jnp.mean(h**2) * scale

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def call() -> Call:
    """The step, called by shapes."""
    return call_of(step, (WEIGHTS, X), {"scale": 2.0}, "cpu")


def temporaries(call: Call) -> int:
    """The bytes that XLA needs besides arguments and outputs."""
    compiled = call.lower().compile({"xla_backend_optimization_level": 0})
    return int(compiled.memory_analysis().temp_size_in_bytes)


def test_the_change_says_where_and_what_to_write() -> None:
    """The user's function, its line, and how often it is called."""
    (edit,) = CHECKPOINT.edits(call(), None, Asked())
    where = f"test_checkpoint_change.py:{layer.__code__.co_firstlineno}"

    assert (edit.what, edit.where, edit.code, edit.unapplied) == (
        f"jax.checkpoint around layer, {where}",
        (where,),
        f"wrap `layer`, {where}, called 6 times, in jax.checkpoint",
        "",
    )


def test_the_changed_call_needs_less_and_keeps_the_rest() -> None:
    """Also after another change, whose donations and places of arguments stay, and by pickle."""
    before = call()
    edit = pickle.loads(pickle.dumps(next(CHECKPOINT.edits(before, None, Asked()))))

    after = edit.on(before)
    moved = edit.on(before.with_arguments({6: before.arguments[6].at(None)}))

    assert temporaries(after) < temporaries(before)
    assert [leaf.donated for leaf in after.arguments] == [True] * 6 + [False]
    assert [leaf.moved for leaf in moved.arguments] == [False] * 6 + [True]
    assert str(moved.jaxpr) == str(after.jaxpr)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda: call().rewritten(call().jaxpr), "an earlier change rewrote the program"),
        (lambda: call_of(lambda x: x * 2, (X,), {}, "cpu"), "no function is called several times"),
    ],
)
def test_it_says_why_it_does_not_apply(changed: Any, reason: str) -> None:
    """A program that was rewritten, and one that differentiates nothing."""
    with pytest.raises(NothingToChange, match=reason):
        next(CHECKPOINT.edits(changed(), None, Asked()))


def test_a_step_without_the_function_is_not_returned_unchanged() -> None:
    """A function is known by its file and line, so that of another file is another one."""
    edit = next(CHECKPOINT.edits(call(), None, Asked()))
    other = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(x))))

    with pytest.raises(NothingToChange, match=r"layer, test_.*, is not called in what the step"):
        edit.on(call_of(other, (X,), {}, "cpu"))


def test_a_step_of_equinox_gets_the_checkpoint_by_shapes() -> None:
    """filter_jit takes a shape for a static value, so the shapes come as tracers here too."""
    eqx = pytest.importorskip("equinox")

    eqx_step = eqx.filter_jit(functools.partial(step, scale=2.0))

    before = call_of(eqx_step, (WEIGHTS, X), {}, "cpu")
    after = next(CHECKPOINT.edits(before, None, Asked())).on(before)

    assert temporaries(after) < temporaries(before)


def verdict(peak_bytes: int) -> Fit:
    """A verdict on a changed step that does not fit."""
    report = OomReport(message=OomMessage(""))
    return Fit(False, peak_bytes, peak_bytes, 1 << 20, "v5e", "assigned", report)


def inner(h: Any, w: Any) -> Any:
    """A part of a block, which saves less than the whole block."""
    return jnp.tanh(jnp.exp(-jnp.sin(h @ w)))


def block(h: Any, w: Any) -> Any:
    """A block with a part that can have a checkpoint of its own."""
    return jnp.cos(jnp.exp(-jnp.sin(inner(h, w)))) + h


@pytest.mark.parametrize(
    ("over_mib", "tried"), [(1, ["block", "inner"]), (8, ["block"])], ids=["near", "far"]
)
def test_a_place_that_saves_too_little_is_not_tried(over_mib: int, tried: list[str]) -> None:
    """After the measured peak of another place, the estimates of both say how far it can fall."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(x, w)
        return jnp.mean(x**2)

    edits = CHECKPOINT.edits(
        call_of(jax.grad(loss), (WEIGHTS, X), {}, "cpu"), None, Asked(limit_bytes=1 << 20)
    )
    found = [next(edits)]
    while True:
        try:
            found.append(edits.send(verdict(over_mib << 20)))
        except StopIteration:
            break

    assert [edit.what.split()[2].rstrip(",") for edit in found] == tried


def test_a_checkpoint_that_keeps_as_much_is_not_compiled() -> None:
    """The plan asks for no verdict on it, and says why."""
    before = call()
    edit = next(CHECKPOINT.edits(before, None, Asked()))
    target = target_of(before.lowered)
    tries = Tries(target, time.monotonic() + 600, 600, 1 << 20)
    same = edit.on(before).changed(given=before.given)  # it is placed again, and in the same step
    already = Tried(same, (), verdict(1 << 20), None)

    assert edit.is_worth_a_compile(before, edit.on(before))
    with pytest.raises(NothingToChange, match="needs no less memory with it"):
        tries.attempt(already, (CHECKPOINT, edit))
    assert tries.done == []
