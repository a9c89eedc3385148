"""A changed step in a training loop: the same losses, signature, donation, shardings and watch."""

from __future__ import annotations

import functools
import inspect
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes.batch import Shorten
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.donation import Donate
from hbmwatch._preflight.changes.tracing import call_of
from tests.preflight.changes.steps import first_edit, mesh
from tests.programs import FAST_COMPILE

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 64, 16, 8
OPTIMIZER = optax.adam(3e-3)


def transformer(params: Any, tokens: Any) -> Any:
    """The logits of two blocks of attention and a dense layer."""
    h = params["embedding"][tokens]
    for block in params["blocks"]:
        q, k, v = jnp.split(h @ block["qkv"], 3, -1)
        scores = q @ k.swapaxes(-1, -2) / WIDTH**0.5
        scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -1e9)
        h = h + jax.nn.softmax(scores) @ v
        h = h + jax.nn.gelu(h @ block["up"]) @ block["down"]
    return h @ params["embedding"].T


def train_step(params: Any, state: Any, tokens: Any) -> Any:
    """One step of Adam on the next token."""

    def loss_of(params: Any) -> Any:
        logits = transformer(params, tokens)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


STEP = jax.jit(train_step, compiler_options=FAST_COMPILE)


def start() -> tuple[Any, Any]:
    """Fresh parameters and state."""
    random = np.random.default_rng(0)  # jax.random is compiled for each shape

    def normal(*shape: int) -> Any:
        return jnp.asarray(0.1 * random.normal(size=shape), jnp.float32)

    blocks = [
        {
            "qkv": normal(WIDTH, 3 * WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(2)
    ]
    params = {"embedding": normal(VOCABULARY, WIDTH), "blocks": blocks}
    return params, OPTIMIZER.init(params)


def batches(count: int = 50) -> list[Any]:
    """Tokens that count up, from random starts."""
    starts = np.random.default_rng(0).integers(0, VOCABULARY, (count, BATCH, 1))
    return list((starts + np.arange(LENGTH)) % VOCABULARY)


def trained(step: Any, params: Any, state: Any) -> list[float]:
    """The losses of a training run."""
    losses = []
    for tokens in batches():
        params, state, loss = step(params, state, jnp.asarray(tokens))
        losses.append(float(loss))
    return losses


@functools.cache
def expected() -> list[float]:
    """The losses without a change."""
    return trained(STEP, *start())


def train_call(*args: Any) -> Call:
    """The training step as a call."""
    params, state = args or start()
    return call_of(STEP, (params, state, jnp.asarray(batches(1)[0])), {}, None)


@pytest.mark.slow
def test_a_transformer_trains_in_pieces_with_the_same_losses() -> None:
    """50 steps: the losses fall, equal to those without the change, and the step is traced once."""
    traces: list[str] = []

    def step(*args: Any) -> Any:
        traces.append("step")
        return train_step(*args)

    changed = apply(
        jax.jit(step, compiler_options=FAST_COMPILE), (first_edit("pieces", train_call()),)
    )
    losses = trained(changed, *start())

    assert expected()[-1] < 0.5 * expected()[0]
    np.testing.assert_allclose(losses, expected(), rtol=1e-4)
    assert traces == ["step"]


@pytest.mark.slow
def test_a_transformer_trains_with_donation() -> None:
    """What is donated is gone after the step, and the losses are the same."""
    step = apply(STEP, (first_edit("donation", train_call(), "params", "state"),))
    params, state = start()
    step(params, state, jnp.asarray(batches(1)[0]))

    assert {leaf.is_deleted() for leaf in jax.tree.leaves((params, state[0].mu))} == {True}
    np.testing.assert_allclose(trained(step, *start()), expected(), rtol=1e-4)


@pytest.mark.slow
def test_a_transformer_trains_sharded_over_four_devices() -> None:
    """After the first step the state lies in pieces on the devices, and stays there."""
    whole = NamedSharding(mesh(), P())
    call = train_call(*jax.device_put(start(), whole))
    edit = first_edit("sharding", call)
    step = apply(STEP, (edit,))
    params, state = jax.device_put(start(), whole)
    params, state, _ = step(params, state, jnp.asarray(batches(1)[0]))

    for up in (params["blocks"][0]["up"], state[0].mu["blocks"][0]["up"]):
        assert {shard.data.shape for shard in up.addressable_shards} == {(WIDTH, WIDTH)}
    losses = trained(step, *jax.device_put(start(), whole))
    np.testing.assert_allclose(losses, expected(), rtol=1e-4)


def test_an_array_that_is_passed_twice_can_be_donated() -> None:
    """An average starts as the parameters: one buffer, as one object or two."""

    def step(params: Any, average: Any) -> Any:
        return params * 0.5, average * 0.5 + params

    both = Donate(what="", code="", arguments=(0, 1))
    one = Donate(what="", code="", arguments=(1,))
    for edit in (both, one):
        changed = apply(jax.jit(step), (edit,))
        for is_same_object in (True, False):
            params = jnp.full(8, 2.0)
            average = params if is_same_object else jax.device_put(params, params.sharding)
            made = changed(params, average)
            np.testing.assert_array_equal(jnp.stack(made), [[1.0] * 8, [3.0] * 8])
            assert params.is_deleted() == (edit is both)


WITH_A_CALLBACK = """
import time
import jax
import jax.numpy as jnp
from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes.donation import Donate

def step(x):
    jax.debug.callback(lambda value: time.sleep(0.1), x[0, 0])
    return x * 2

@jax.jit
def long(x):
    return jax.lax.fori_loop(0, 30, lambda i, x: jnp.tanh(x @ x), x)

jitted = jax.jit(step)
changed = apply(jitted, (Donate(what="", code="", arguments=(0,)),))
x = jnp.zeros((512, 512))
changed(jitted(x))
# The last program starts after the callback, and only then is there memory for its output.
x = changed(long(jitted(long(x))))
print(float(x.sum()))
"""


@pytest.mark.slow
def test_a_call_does_not_wait_for_a_callback_of_the_last_one() -> None:
    """To wait for an array with Python's lock held would wait forever, so this runs in a child."""
    child = subprocess.run(
        [sys.executable, "-c", WITH_A_CALLBACK], capture_output=True, text=True, timeout=120
    )
    assert (child.stdout, child.returncode) == ("0.0\n", 0), child.stderr


def test_a_step_may_close_over_values_of_an_outer_trace() -> None:
    """The changed step is a part of a larger jitted function, and is traced for each of them."""

    @jax.jit
    def outer(x: Any, scale: Any) -> Any:
        def step(x: Any) -> Any:
            return jnp.tanh(x @ x.T * scale).sum(0)

        call = call_of(step, (x,), {}, None)
        return apply(step, (first_edit("pieces", call),))(x)

    x = jnp.arange(256.0).reshape(64, 4) / 256

    for scale in (1.0, 3.0):
        np.testing.assert_allclose(outer(x, scale), jnp.tanh(x @ x.T * scale).sum(0), rtol=1e-6)


def test_the_signature_and_the_static_arguments_stay() -> None:
    """Positions, names, defaults and static arguments are those of the step."""

    @functools.partial(jax.jit, static_argnames=("power",))
    def step(state: Any, *, power: int = 2, rate: Any = 0.5) -> Any:
        """Documented."""
        return state * rate**power, {"power": rate}

    call = call_of(step, (jnp.ones(8),), {"power": 3}, None)
    changed = apply(step, (first_edit("donation", call, "state"),))

    assert inspect.signature(changed) == inspect.signature(step)
    assert (changed.__name__, changed.__doc__) == ("step", "Documented.")
    for power in (3, 3, 1):
        for rate in (0.5, 2.0):
            state, extra = changed(jnp.ones(8), power=power, rate=rate)
            np.testing.assert_array_equal(state, jnp.ones(8) * rate**power)
            assert float(extra["power"]) == rate


def test_a_method_and_a_partial_can_be_changed() -> None:
    """A bound method keeps its object, a partial its arguments."""

    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, state: Any) -> Any:
            return state * self.scale

    model = Model(3.0)
    partial = functools.partial(jax.jit(lambda a, b: a * b), jnp.full(8, 3.0))
    for step in (model.step, partial):
        call = call_of(step, (jnp.ones(8),), {}, None)
        edit = Donate(what="", code="", arguments=(len(call.arguments) - 1,))
        state = jnp.ones(8)
        np.testing.assert_array_equal(apply(step, (edit,))(state), jnp.full(8, 3.0))
        assert state.is_deleted()


def test_a_watched_step_stays_watched() -> None:
    """A change of a watched step is watched with the same settings."""
    seen: list[Any] = []

    @watch_hbm(on_oom=seen.append, static_argnames="n")
    def step(state: Any, n: int) -> Any:
        return state + 1, jnp.broadcast_to(state[0], (n,)) * 2

    call = call_of(step, (jnp.ones(8),), {"n": 1}, None)
    changed = apply(step, (first_edit("donation", call, "state"),))

    assert inspect.unwrap(changed) is inspect.unwrap(step)
    check_donates_and_reports(changed, 2.0)
    assert [report.function for report in seen] == ["step"]


def test_a_partial_of_a_watched_step_stays_watched() -> None:
    """With the arguments that the partial has."""
    seen: list[Any] = []
    watched = watch_hbm(grow, on_oom=seen.append, static_argnames="n")
    step = functools.partial(watched, jnp.full(8, 3.0))
    call = call_of(step, (jnp.ones(8),), {"n": 1}, None)
    changed = apply(step, (first_edit("donation", call, "state"),))

    check_donates_and_reports(changed, 4.0)
    assert [report.function for report in seen] == ["grow"]


def check_donates_and_reports(changed: Any, grown: float) -> None:
    """The changed step gives the values, deletes its state, and raises what a watched one does."""
    state = jnp.ones(8)
    np.testing.assert_array_equal(changed(state, n=1)[0], jnp.full(8, grown))
    assert state.is_deleted()
    with pytest.raises(HbmOomError):
        changed(jnp.ones(8), n=2**50)


def grow(added: Any, state: Any, n: int) -> Any:
    """A step with a constant in front of its state."""
    return state + added, jnp.broadcast_to(state[0], (n,)) * 2


def pickled_step(state: Any) -> Any:
    """A step that pickles by its name."""
    return state * 2


def test_a_changed_step_pickles_if_the_step_does() -> None:
    """Unpickled, it is the same change of the same step; a lambda is refused with its name."""
    call = call_of(pickled_step, (jnp.ones(8),), {}, None)
    edit = first_edit("donation", call, "state")
    again = pickle.loads(pickle.dumps(apply(pickled_step, (edit,))))
    np.testing.assert_array_equal(again(jnp.ones(8)), jnp.full(8, 2.0))

    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(apply(lambda state: state * 2, (edit,)))


def test_what_cannot_be_applied_says_why() -> None:
    """A smaller batch is the caller's; another library's jit keeps its own arguments."""

    class Other:
        def lower(self) -> None:
            """Lowers nothing."""

    shorter = Shorten(
        what="halving the batch", code="", unapplied="pass less", arguments=(), parts=2
    )
    with pytest.raises(ValueError, match="halving the batch cannot be applied: pass less"):
        apply(pickled_step, (shorter,))
    with pytest.raises(TypeError, match="not to Other: write it into the step"):
        apply(Other(), (Donate(what="", code="", arguments=()),))  # type: ignore[arg-type]


def test_a_transformation_of_a_jitted_function_is_another_function() -> None:
    """The gradient of a jitted loss is changed as a whole."""
    loss = jax.jit(lambda x: (x**3).sum())

    found = [apply(made, ())(jnp.full(3, 2.0)) for made in (jax.grad(loss), jax.vmap(loss))]

    assert [value.tolist() for value in found] == [[12.0] * 3, [8.0] * 3]


def test_a_wrapper_of_the_users_is_refused() -> None:
    """A change to the jitted function inside would leave out what the wrapper does."""
    inner = watch_hbm(lambda x: x + 1)

    @functools.wraps(inner)
    def scaled(x: Any) -> Any:
        return inner(x) * 10

    with pytest.raises(TypeError, match="wraps a jitted function"):
        apply(scaled, ())


def test_static_arguments_that_are_equal_are_told_apart() -> None:
    """1, 1.0 and True are equal, and the step may treat them differently."""
    step = jax.jit(lambda x, n: x * n if type(n) is int else x + 100, static_argnums=1)
    changed = apply(step, ())

    assert [float(changed(1.0, n)) for n in (1, 1.0, True)] == [1.0, 101.0, 101.0]


def test_a_changed_step_is_a_method() -> None:
    """Where the step is the attribute of a class."""

    class Model:
        scale = 3

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, x: Any) -> Any:
            return x * self.scale

    Model.step = apply(Model.step, ())  # type: ignore[method-assign]

    assert float(Model().step(2.0)) == 6.0
