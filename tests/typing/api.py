"""Read by mypy, never run: what a watched function's type is."""

from __future__ import annotations

from typing import assert_type

import jax

from hbmwatch import HbmOomError, OomReport, PeakSummary, watch_hbm


@watch_hbm
def bare(x: jax.Array, n: int = 1) -> jax.Array:
    return x * n


@watch_hbm(donate_argnums=0, on_oom=print, prove=60)
def with_keywords(x: jax.Array) -> tuple[jax.Array, float]:
    return x, 1.0


@watch_hbm("/tmp/xprof")
def with_a_folder(x: jax.Array) -> jax.Array:
    return x


class Trainer:
    @watch_hbm(static_argnums=0)
    def step(self, x: jax.Array) -> float:
        return 1.0


def uses(x: jax.Array) -> None:
    assert_type(bare(x), jax.Array)
    assert_type(bare(x, n=2), jax.Array)
    assert_type(with_keywords(x), tuple[jax.Array, float])
    assert_type(with_a_folder(x), jax.Array)
    assert_type(Trainer().step(x), float)
    assert_type(watch_hbm(lambda: 3)(), int)
    assert_type(bare.lower(x), jax.stages.Lowered)
    bare("x")  # type: ignore[arg-type]
    bare(x, m=2)  # type: ignore[call-arg]
    Trainer().step(x, x)  # type: ignore[call-arg]
    watch_hbm(capture="sometimes")  # type: ignore[call-overload]
    with watch_hbm("/tmp/xprof") as watch:
        assert_type(watch.report, OomReport | None)


def catches(error: HbmOomError) -> None:
    assert_type(error.report, OomReport)
    assert_type(error.summary, PeakSummary | None)
