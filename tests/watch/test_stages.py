"""The stages of ahead-of-time compilation, watched."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import SMALL, fails, fill, fill_donated


def test_a_watched_step_has_the_stages_of_a_jitted_one() -> None:
    """lower, trace, eval_shape and clear_cache pass for jax's own."""

    def step(x: jax.Array) -> jax.Array:
        """Adds one."""
        return x + 1

    watched = watch_hbm(step)
    lowered = watched.lower(SMALL)
    compiled = lowered.compile()

    assert isinstance(watched, jax.stages.Wrapped)
    assert isinstance(watched.trace(SMALL), jax.stages.Traced)
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(compiled, jax.stages.Compiled)
    assert watched.eval_shape(SMALL) == jax.eval_shape(step, SMALL)
    assert compiled(SMALL).tolist() == [2.0] * 8
    assert compiled.memory_analysis() is not None
    watched.clear_cache()
    assert inspect.isfunction(watched)
    assert (watched.__name__, watched.__doc__, watched.__wrapped__) == ("step", "Adds one.", step)
    assert inspect.signature(watched) == inspect.signature(step)


def test_stages_copy_and_have_a_signature() -> None:
    """copy and inspect treat a watched stage as the stage that it stands for."""
    lowered = watch_hbm(lambda x: x + 1).lower(SMALL)
    compiled = lowered.compile()

    assert isinstance(copy.copy(lowered), jax.stages.Lowered)
    assert copy.copy(compiled)(SMALL).tolist() == [2.0] * 8
    bare = jax.jit(lambda x: x + 1).lower(SMALL).compile()
    assert inspect.signature(compiled) == inspect.signature(bare)


def test_a_compiled_call_names_its_donated_arguments(watch: Callable[..., Any]) -> None:
    """The names are the function's, as in a call of the function."""
    state = jnp.ones((4, 4))
    compiled = watch(fill_donated, donate_argnums=0).lower(state, SMALL).compile()

    oom = fails(compiled, state, SMALL)

    assert oom.report.device is not None
    assert oom.report.device.deleted == (("state",) if state.is_deleted() else ())


WRONG: dict[str, tuple[Any, ...]] = {
    "shape": (jnp.ones(5),),
    "dtype": (jnp.ones(8, jnp.int32),),
    "pytree": ({"x": SMALL},),
    "too many": (SMALL, SMALL),
    "too few": (),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_compiled_program_refuses_wrong_arguments_as_the_bare_one_does(wrong: str) -> None:
    """Before and after its first call, from which on JAX's own method in Python is left out."""
    lowered = jax.jit(lambda x: x + 1).lower(SMALL)
    bare, watched = lowered.compile(), watch_hbm(lowered.compile())

    errors = [refused(bare, wrong), refused(watched, wrong)]
    assert bare(SMALL).tolist() == watched(SMALL).tolist() == [2.0] * 8
    errors += [refused(bare, wrong), refused(watched, wrong)]

    assert errors == [errors[0]] * 4


def refused(program: Any, wrong: str) -> tuple[type[Exception], str]:
    """The error of a call with wrong arguments."""
    with pytest.raises((TypeError, ValueError)) as caught:
        program(*WRONG[wrong])
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("stage", ["lower", "trace", "eval_shape"])
def test_an_oom_while_a_step_is_traced_is_explained(stage: str) -> None:
    """A program that runs while the step is traced is not the step."""
    filled = jax.jit(fill)

    @watch_hbm
    def step(x: jax.Array) -> jax.Array:
        with jax.ensure_compile_time_eval():
            jax.block_until_ready(filled(jnp.ones(8)))
        return x + 1

    with pytest.raises(HbmOomError) as caught:
        getattr(step, stage)(SMALL)

    assert caught.value.report.function == ""
    assert caught.value.summary is not None
    assert caught.value.summary.module == "jit_fill"
