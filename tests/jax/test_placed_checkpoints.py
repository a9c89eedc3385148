"""jax.checkpoint placed by the library: which places it finds, and what else stays as it was."""

from __future__ import annotations

import functools
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import source_info_util
from jax._src.interpreters import ad

from hbmwatch._jax.placed_checkpoints import candidates, placed
from tests.jax.styles import MARKED, STYLES
from tests.programs import FAST_COMPILE


def checkpoints(step: Any, *args: Any) -> int:
    """How many equations of jax.checkpoint the traced step has."""
    text = str(step.trace(*args).jaxpr)
    return text.count("checkpoint[") + text.count("remat2[") + text.count("remat[")


@pytest.mark.parametrize("style", MARKED)
def test_each_way_to_differentiate_gets_the_checkpoint(style: str) -> None:
    """The places are found, the first one gets a checkpoint, and the step itself gets none."""
    fun, args = STYLES[style]()
    step = jax.jit(fun)
    before = checkpoints(step, *args)

    changed = placed(step, candidates(step, *args)[0])

    assert checkpoints(changed, *args) > before
    assert checkpoints(step, *args) == before


def block(h: Any, w: Any) -> Any:
    """A layer."""
    return helper(jnp.sin(h @ w)) * 2.0 + h


def helper(h: Any) -> Any:
    """A part of each layer."""
    return jnp.tanh(jnp.exp(jnp.cos(h)))


def layers_loss(weights: Any, x: Any) -> Any:
    """As many layers as there are weights."""
    for w in weights:
        x = block(x, w)
    return jnp.sum(x**2)


def grads_of(loss: Any) -> Any:
    """A step that returns the gradients of a loss."""
    return jax.jit(lambda weights, x: jax.grad(loss)(weights, x))


def shapes(layers: int) -> tuple[Any, Any]:
    """Weights, and a batch that is larger than them."""
    weights = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * layers
    return weights, jax.ShapeDtypeStruct((256, 8), jnp.float32)


def where(function: Any) -> str:
    """Where a function of this file is defined."""
    return f"test_placed_checkpoints.py:{function.__code__.co_firstlineno}"


def test_the_places_are_those_that_a_person_would_name() -> None:
    """The layer that is called most, its part, and groups of layers; the whole loss is none."""
    places = candidates(grads_of(layers_loss), *shapes(16))

    assert [(one.name, one.where, one.calls, one.group) for one in places] == [
        ("block", where(block), 16, 1),
        ("block", where(block), 16, 4),
        ("helper", where(helper), 16, 1),
    ]
    assert [one.code for one in places[:2]] == [
        f"wrap `block`, {where(block)}, called 16 times, in jax.checkpoint",
        f"wrap `block`, {where(block)}, called 16 times, in jax.checkpoint, and each 4 of them in "
        "a row in one more jax.checkpoint",
    ]


def test_a_loss_in_a_jit_is_no_place_of_its_own() -> None:
    """A call that covers the whole forward pass saves nothing; the calls in it are named."""
    step = grads_of(jax.jit(layers_loss))

    assert [one.name for one in candidates(step, *shapes(4))] == ["block", "helper"]


def by_hand(weights: Any, x: Any) -> Any:
    """The layers, each under jax.checkpoint."""
    for w in weights:
        x = jax.checkpoint(block)(x, w)
    return jnp.sum(x**2)


def test_what_is_checkpointed_already_is_no_place() -> None:
    """Neither the function under jax.checkpoint nor what it calls is named."""
    assert candidates(grads_of(by_hand), *shapes(4)) == []


def test_many_checkpointed_layers_are_grouped() -> None:
    """The inputs of the layers are what is left, and each layer has its checkpoint already."""
    args = shapes(16)
    (place,) = candidates(grads_of(by_hand), *args)

    assert (place.name, place.calls, place.group, place.each) == ("block", 16, 4, False)
    assert place.code == (
        f"wrap each 4 calls in a row of `block`, {where(block)}, called 16 times, in one more "
        "jax.checkpoint"
    )

    def grouped(weights: Any, x: Any) -> Any:
        for start in range(0, 16, 4):
            four = jax.checkpoint(lambda weights, x: layers_of(weights, x))
            x = four(weights[start : start + 4], x)
        return jnp.sum(x**2)

    def layers_of(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jax.checkpoint(lambda x, w: block(x, w))(x, w)
        return x

    ours = placed(grads_of(by_hand), place)
    assert checkpoints(ours, *args) == checkpoints(grads_of(grouped), *args)


@pytest.mark.parametrize("scanned", [False, True])
def test_a_checkpoint_around_everything_gets_others_inside(scanned: bool) -> None:
    """To compute all layers again at once saves nothing; a checkpoint around each of them does."""

    def scan(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, w: (block(h, w), None), x, weights)[0] ** 2)

    loss = jax.checkpoint(scan if scanned else layers_loss)
    weights, x = shapes(6)
    args = (jax.ShapeDtypeStruct((6, 8, 8), jnp.float32) if scanned else weights, x)
    step = grads_of(loss)
    place = candidates(step, *args)[0]

    assert (place.name, place.calls) == ("<lambda>" if scanned else "block", 6)
    assert checkpoints(placed(step, place), *args) > checkpoints(step, *args)
    assert temporaries(placed(step, place), *args) < 0.7 * temporaries(step, *args)


def temporaries(step: Any, *args: Any) -> int:
    """The bytes that XLA needs besides arguments and outputs."""
    compiled = step.lower(*args).compile(compiler_options=FAST_COMPILE)
    return int(compiled.memory_analysis().temp_size_in_bytes)


def test_forward_mode_has_no_places() -> None:
    """It keeps nothing for a backward pass."""
    step = jax.jit(lambda weights, x: jax.jacfwd(lambda x: layers_loss(weights, x))(x))

    assert candidates(step, shapes(3)[0], shapes(3)[0][0]) == []


def test_a_scanned_function_is_named_with_its_steps() -> None:
    """A lambda that is the body of a scan is called once in each step."""

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, w: (block(h, w), None), x, weights)[0] ** 2)

    weights = jax.ShapeDtypeStruct((6, 8, 8), jnp.float32)
    step = grads_of(loss)
    places = candidates(step, weights, shapes(1)[1])

    assert [(one.name, one.calls) for one in places] == [("<lambda>", 6), ("helper", 6)]
    assert checkpoints(placed(step, places[0]), weights, shapes(1)[1]) == 1


@pytest.mark.slow
def test_the_memory_falls() -> None:
    """What the compiler keeps for the backward pass is less, as with jax.checkpoint by hand."""
    args = shapes(8)
    step = grads_of(layers_loss)

    ours = temporaries(placed(step, candidates(step, *args)[0]), *args)

    assert ours == temporaries(grads_of(by_hand), *args)
    assert ours < 0.7 * temporaries(step, *args)


def test_the_compiler_gets_the_lines_of_the_user() -> None:
    """The program names the files of the step, and none of ours."""
    step = grads_of(layers_loss)
    changed = placed(step, candidates(step, *shapes(3))[0])

    text = changed.lower(*shapes(3)).as_text("hlo", debug_info=True)
    files = set(re.findall(r'"[^"]*/(\w+\.py)"', text))

    assert Path(__file__).name in files
    assert files & {"calls.py", "intercept.py", "placed_checkpoints.py"} == set()


# --- nothing is left behind ---------------------------------------------------------------------


def test_a_step_that_was_traced_before_gets_the_checkpoint_and_loses_it() -> None:
    """JAX's caches keep the traces apart, also those of a jit in the step."""
    args = shapes(4)
    inner = jax.jit(lambda weights, x: jax.value_and_grad(layers_loss)(weights, x))
    step = jax.jit(lambda weights, x: inner(weights, x)[1])
    seen = [checkpoints(step, *args)]

    first, second = candidates(step, *args)
    seen += [checkpoints(one, *args) for one in (placed(step, first), step, placed(step, second))]

    assert seen + [checkpoints(step, *args)] == [0, 4, 0, 4, 0]


@pytest.mark.parametrize("profiling", [False, True])
def test_what_was_compiled_before_is_not_compiled_again(profiling: bool) -> None:
    """Where jax_enable_pgle is set, JAX's user contexts are used, and JAX compiles it once more."""
    if profiling and not hasattr(jax, "make_user_context"):
        pytest.skip("this JAX has no user contexts")
    traces: list[str] = []

    @jax.jit
    def other(x: Any) -> Any:
        traces.append("other")
        return x * 2

    other(jnp.ones(3))
    step = grads_of(layers_loss)
    try:
        jax.config.update("jax_enable_pgle", profiling)
        changed = placed(step, candidates(step, *shapes(4))[0])
        assert checkpoints(changed, *shapes(4)) == 4
        assert checkpoints(step, *shapes(4)) == 0
    finally:
        jax.config.update("jax_enable_pgle", False)
    other(jnp.ones(3))

    assert traces in (["other"], ["other", "other"] if profiling else ["other"])


def test_jax_is_as_it_was() -> None:
    """The functions of JAX are the same objects after each use, also after an error."""
    before = ad.linearize, source_info_util.current

    def failing(weights: Any, x: Any) -> Any:
        block(x, weights[0])
        raise ArithmeticError("the loss fails")

    step = grads_of(layers_loss)
    changed = placed(step, candidates(step, *shapes(4))[0])
    changed.lower(*shapes(4))
    with pytest.raises(ArithmeticError, match="the loss fails"):
        candidates(grads_of(failing), *shapes(4))
    with pytest.raises(TypeError):
        changed.lower(shapes(4))

    assert (ad.linearize, source_info_util.current) == before
    assert (before[0].__module__, before[1].__module__) == (ad.__name__, source_info_util.__name__)


def test_other_threads_get_no_checkpoint() -> None:
    """While one thread traces with a checkpoint, another traces without."""
    args = shapes(4)
    seen: list[int] = []

    def loss(weights: Any, x: Any) -> Any:
        if not seen:
            seen.append(-1)
            thread = threading.Thread(
                target=lambda: seen.append(checkpoints(grads_of(layers_loss), *args))
            )
            thread.start()
            thread.join()
        return layers_loss(weights, x)

    place = candidates(grads_of(layers_loss), *args)[0]

    assert checkpoints(placed(grads_of(loss), place), *args) == 4
    assert seen == [-1, 0]


def test_a_placed_step_is_traced_once_and_keeps_what_the_jit_says() -> None:
    """Static arguments, donation and the cache of the jit are those of the step."""
    traces: list[int] = []

    @functools.partial(jax.jit, static_argnames="power", donate_argnums=0)
    def step(weights: Any, x: Any, power: int) -> Any:
        traces.append(power)
        grads = jax.grad(lambda weights: layers_loss(weights, x) ** power)(weights)
        return jax.tree.map(lambda w, g: w - 1e-9 * g, weights, grads)

    x = jnp.ones((64, 8))
    weights = [jnp.eye(8) * 0.1] * 2 + [jnp.ones((8, 8)) * 0.01]
    weights = [w + 0.0 for w in weights]
    changed = placed(step, candidates(step, weights, x, power=1)[0])
    traces.clear()

    first = changed(weights, x, power=1)
    changed(changed(first, x, power=1), x, power=1)

    assert traces == [1]
    assert [w.is_deleted() for w in weights] == [True] * 3
    assert [leaf.donated for leaf in jax.tree.leaves(changed.lower(first, x, power=2).args_info)][
        -1
    ] is False


def test_a_plain_function_and_an_inner_jit_get_the_checkpoint() -> None:
    """A step need not be jitted, and the placed step can be a part of another."""
    args = shapes(4)

    def step(weights: Any, x: Any) -> Any:
        return jax.grad(layers_loss)(weights, x)

    place = candidates(step, *args)[0]

    assert checkpoints(jax.jit(placed(step, place)), *args) == 4
    outer = jax.jit(lambda weights, x: placed(jax.jit(step), place)(weights, x))
    assert checkpoints(outer, *args) == 4


def test_a_place_and_a_placed_step_pickle() -> None:
    """As far as the step itself does."""
    args = shapes(4)
    place = candidates(pickled_step, *args)[0]

    copy = pickle.loads(pickle.dumps(placed(pickled_step, place)))

    assert pickle.loads(pickle.dumps(place)) == place
    assert checkpoints(jax.jit(copy), *args) == 4


def pickled_step(weights: Any, x: Any) -> Any:
    """A step that pickle finds by its name."""
    return jax.grad(layers_loss)(weights, x)


def test_a_call_with_ordered_effects_is_no_place() -> None:
    """To compute it again would do the effect twice."""

    def effect(h: Any, w: Any) -> Any:
        h = block(h, w)
        jax.debug.callback(lambda _: None, h[0, 0], ordered=True)
        return h

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = effect(x, w)
        return jnp.sum(x**2)

    assert [one.name for one in candidates(grads_of(loss), *shapes(4))] == ["block", "helper"]
