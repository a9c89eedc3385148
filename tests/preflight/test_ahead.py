"""A checkpoint that is compiled while the compiler works on the unchanged step."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import Fit, Plan, plan
from hbmwatch._jax.placed_checkpoints import candidates
from hbmwatch._preflight import ahead
from hbmwatch._preflight.ahead import Ahead
from hbmwatch._preflight.changes import checkpoint
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.targets import target_of

MIB = 2**20
S = jax.ShapeDtypeStruct
WEIGHTS = [S((128, 128), jnp.float32)] * 8
X = S((8192, 128), jnp.float32)  # 4 MiB


def layer(h: Any, w: Any) -> Any:
    """One of eight layers, which keeps several values of 4 MiB."""
    return jnp.tanh(jnp.exp(-jnp.sin(h @ w))) + h


def step(weights: Any, x: Any) -> Any:
    """The gradients of all weights."""

    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = layer(h, w)
        return jnp.mean(h**2)

    return jax.grad(loss)(weights)


def call() -> Call:
    """The step, called by shapes."""
    return call_of(jax.jit(step), (WEIGHTS, X), {}, "cpu")


def started(limit_bytes: int, until: float | None = None) -> contextlib.closing[Ahead]:
    """What is compiled beside a step, after the compiler has been busy for a while."""
    of = call()
    found = Ahead(of, target_of(of.lowered), limit_bytes, 0.0, until or time.monotonic() + 600)
    found.look()
    return contextlib.closing(found)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_LEAST_WAIT_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; empty when the test ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def test_its_compiler_ends_with_the_block(folder: Path) -> None:
    """No process and no folder stays, whether somebody took it or not."""
    with started(MIB) as found:
        assert len(list(folder.iterdir())) == 1
        found.close()
        assert list(folder.iterdir()) == []
        assert not found.look()
        assert list(folder.iterdir()) == []
    with started(MIB):
        assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_it_ends_where_another_change_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The donation of the state stays, so the step without it is compiled no longer."""

    def train(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - g, weights, step(weights, x))

    ended: list[str] = []
    real = Ahead.close

    def end(self: Ahead) -> None:
        ended.extend(tried)
        real(self)

    tried: list[str] = []
    monkeypatch.setattr(Ahead, "close", end)
    weights, x = [S((1024, 1024), jnp.float32)] * 4, S((2048, 1024), jnp.float32)
    plan(
        jax.jit(train),
        weights,
        x,
        limit_bytes=30 * MIB,
        seconds=60,
        on_try=lambda what, fit: tried.append(what.partition(" ")[0]),
    )

    assert ended[:1] == ["donating"]


@pytest.mark.parametrize(
    ("limit_bytes", "left_s"), [(2**40, 600), (MIB, -1)], ids=["it fits", "no time"]
)
def test_nothing_is_compiled_where_it_cannot_help(
    folder: Path, limit_bytes: int, left_s: float
) -> None:
    """By an estimate from shapes the step fits; or there is no time to trace it again."""
    with started(limit_bytes, time.monotonic() + left_s):
        assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_the_plan_is_the_same_as_without_it() -> None:
    """The rows are; the places are looked for once, and the checkpoint is taken once."""

    def planned() -> Plan:
        return plan(jax.jit(step), WEIGHTS, X, limit_bytes=100 * MIB, seconds=600)

    def told(rows: Any) -> list[Any]:
        return [(row.what, row.fits, row.total_bytes, row.proof) for row in rows]

    real = Ahead.take
    taken: list[Any] = []

    def take(self: Ahead, *args: Any) -> Any:
        taken.append(real(self, *args))
        return taken[-1]

    with (
        mock.patch.object(Ahead, "take", take),
        mock.patch.object(checkpoint, "candidates", wraps=candidates) as looked,
    ):
        found = planned()
    with mock.patch.object(Ahead, "look", return_value=False):
        expected = planned()

    assert "checkpoint" in {name for row in found.rows for name in row.changes}
    assert sum(each is not None for each in taken) == 1
    assert looked.call_count == 1
    assert told(found.rows) == told(expected.rows)


@pytest.mark.slow
def test_a_step_that_compiles_far_longer_than_with_the_checkpoint_is_given_up() -> None:
    """Its verdict is not known then, and the checkpoint is tried before all other changes."""
    tried: list[str] = []

    def interrupt(what: str, fit: Fit) -> None:
        tried.append(what)
        raise KeyboardInterrupt

    with mock.patch.object(ahead, "has_passed", return_value=True):
        found = plan(
            jax.jit(step), WEIGHTS, X, limit_bytes=100 * MIB, seconds=600, on_try=interrupt
        )

    assert found.before.fits is None
    assert re.fullmatch(r"still compiling after [\d.]+ s", found.before.error)
    assert [what.partition(", ")[0] for what in tried] == ["jax.checkpoint around layer"]
