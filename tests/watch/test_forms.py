"""Every way to watch a step on live CPU devices, and how steps wrap each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import flax.nnx
import jax
import jax.numpy as jnp
import pytest

from hbmwatch import watch_hbm
from tests.live import PETABYTE, SMALL, fails, fill, fill_donated


class Model(equinox.Module):
    """An equinox module with one weight."""

    weight: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return fill(x * self.weight)


class Trainer:
    """A class whose step is a method."""

    scale = 2

    @watch_hbm(static_argnums=0)
    def step(self, x: jax.Array) -> jax.Array:
        """Fill, scaled."""
        return fill(x) * self.scale


def nnx_step() -> Callable[[jax.Array], Any]:
    model = flax.nnx.Linear(8, 8, rngs=flax.nnx.Rngs(0))

    @watch_hbm
    @flax.nnx.jit
    def step(model: flax.nnx.Linear, x: jax.Array) -> jax.Array:
        return fill(model(x))

    return functools.partial(step, model)


FORMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "bare": lambda: watch_hbm(fill),
    "with keywords": lambda: watch_hbm(top=3)(fill),
    "with jit keywords": lambda: watch_hbm(keep_unused=True)(fill),
    "with a folder": lambda: watch_hbm("profiles")(fill),
    "of a jitted function": lambda: watch_hbm(jax.jit(fill)),
    "of a partial": lambda: watch_hbm(functools.partial(jax.jit(fill))),
    "of a wrapped jitted function": lambda: watch_hbm(
        functools.wraps(fill)(functools.partial(jax.jit(fill)))
    ),
    "of a watched function": lambda: watch_hbm(watch_hbm(fill)),
    "under jax.profiler.trace": lambda: jax.profiler.trace("profiles")(watch_hbm(fill)),
    "above jax.profiler.trace": lambda: watch_hbm(jax.profiler.trace("profiles")(jax.jit(fill))),
    "of equinox.filter_jit": lambda: functools.partial(
        watch_hbm(equinox.filter_jit(Model.__call__)), Model(SMALL)
    ),
    "of flax.nnx.jit": nnx_step,
    "of a method": lambda: Trainer().step,
    "of a lambda": lambda: watch_hbm(lambda x: fill(x)),
    "of a host step": lambda: watch_hbm(jit=False)(jax.jit(lambda x: fill(x) * 2).__call__),
    "of a compiled program": lambda: watch_hbm(fill).lower(SMALL).compile(),
    "of a plain compiled program": lambda: watch_hbm(jax.jit(fill).lower(SMALL).compile()),
    "of a traced program": lambda: watch_hbm(fill).trace(SMALL).lower().compile(),
    "with a trace around each call": lambda: watch_hbm("profiles", capture="always")(fill),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_explains_a_cold_and_a_later_failure(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the step is watched, its first OOM and a later one have the peak of the program."""
    monkeypatch.chdir(tmp_path)
    step = FORMS[form]()

    ooms = [fails(step, SMALL), fails(step, SMALL)]

    peaks = {oom.summary.peak_bytes for oom in ooms if oom.summary}
    assert len(peaks) == 1
    assert PETABYTE <= peaks.pop() < PETABYTE + 2**20


def test_pmap_is_watched_as_it_is(watch: Callable[..., Any]) -> None:
    """A pmapped step runs out of memory on each of its devices, and the report is of one."""
    oom = fails(watch(jax.pmap(fill)), jnp.ones((2, 8)))

    assert oom.summary is not None and oom.report.device is not None
    assert oom.summary.peak_bytes == PETABYTE + SMALL.nbytes
    assert oom.report.device.device_count == (2 if jax.__version_info__ >= (0, 8) else 1)


def test_a_donating_inner_step_keeps_its_donation(watch: Callable[..., Any]) -> None:
    """A jitted step that donates is not jitted again, which would lose the donation."""
    inner = jax.jit(lambda state: state * 2, donate_argnums=0)
    steps = [watch(inner), watch(jit=False)(lambda state: inner(state))]

    for step in steps:
        state = jnp.ones((1024, 1024))
        jax.block_until_ready(step(state))
        assert state.is_deleted()


def test_transformations_trace_through_a_watched_step(watch: Callable[..., Any]) -> None:
    """Under jit, grad, vmap, scan and checkpoint a watched step is the function that it watches."""

    square = watch(lambda x: (x**2).sum())

    def scanned(x: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, row: (carry + square(row), None), 0.0, x)[0]

    x = jnp.arange(6.0).reshape(2, 3)
    results = {
        "jit": jax.jit(square)(x),
        "grad": jax.grad(square)(x).sum(),
        "vmap": jax.vmap(square)(x).sum(),
        "scan": scanned(x),
        "checkpoint": jax.checkpoint(square)(x),
    }

    assert {name: float(value) for name, value in results.items()} == {
        "jit": 55.0,
        "grad": 30.0,
        "vmap": 55.0,
        "scan": 55.0,
        "checkpoint": 55.0,
    }


def test_an_oom_under_an_outer_jit_is_the_outer_programs(watch: Callable[..., Any]) -> None:
    """A watched step inside a watched outer one is part of the outer program."""
    inner = watch(fill)

    def outer(x: jax.Array) -> Any:
        return inner(x) + 1

    oom = fails(watch(outer), SMALL)

    assert oom.summary is not None
    assert oom.summary.module == "jit_outer"


@pytest.mark.parametrize(
    "transform", [jax.grad, jax.value_and_grad, jax.vmap, jax.checkpoint, jax.hessian]
)
def test_a_transformation_of_a_jitted_function_is_jitted(transform: Callable[..., Any]) -> None:
    """It holds a jitted function and is none; jit's keywords are taken."""
    jitted = jax.jit(lambda x: (x**2).sum())

    step = watch_hbm(transform(jitted), keep_unused=True)

    assert isinstance(step, jax.stages.Wrapped)
    step(SMALL)


def test_what_wraps_a_jitted_function_is_known_by_its_program(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a partial and of a traced function the program is found while the profiler is busy."""
    steps = {
        "partial": watch(functools.partial(jax.jit(fill_donated, donate_argnums=0), SMALL * 2)),
        "traced": watch(jax.profiler.trace(str(tmp_path / "inner"))(jax.jit(fill))),
    }

    from jax._src.lib import _profiler

    session = _profiler.ProfilerSession()
    try:
        oom = fails(steps["partial"], SMALL)
        assert oom.report.function == "fill_donated"
        assert steps["partial"].__name__ == "fill_donated"
        assert steps["traced"].lower(SMALL).compile().memory_analysis() is not None
    finally:
        session.stop()
