"""A remedy, tried: on a v5e topology where it matters, on the CPU backend where that is enough."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from hbmwatch import watch_hbm
from hbmwatch._preflight.verify import Verification, verify
from hbmwatch._records.report import Finding
from tests.findings.cases import explained
from tests.oom_programs.base import array, mlp, size
from tests.programs import devices

KIB = 1024


def train_step(state: Any, x: Any) -> Any:
    """Momentum on dense layers."""
    grads = jax.grad(lambda p: (mlp(p, x) ** 2).mean())(state["params"])
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], grads)
    params = jax.tree.map(lambda p, v: p - 0.1 * v, state["params"], velocity)
    return {"params": params, "velocity": velocity}


def small(*shape: int, dtype: Any = jnp.float32, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """An argument for the CPU backend."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("watched", [False, True], ids=["jit", "watch_hbm"])
def test_donation_is_measured_on_a_topology(watched: bool) -> None:
    """16 layers with momentum fit a v5e once the state is donated, and the new peak is measured.

    It is what the finding said, within 2%: 8192 MiB less.
    """
    out = SingleDeviceSharding(devices("tpu")[0])
    wrap = watch_hbm if watched else jax.jit
    step = wrap(train_step, out_shardings=out)
    layers = [array(8192, 8192)] * 16
    finding = explained("momentum_step").findings[0]
    found = verify(step, {"params": layers, "velocity": layers}, array(256, 8192), change=finding)
    state = 2 * 16 * size(8192, 8192)
    assert found.fits
    assert found.peak_bytes_before is not None
    assert found.peak_bytes == pytest.approx(found.peak_bytes_before - state, rel=0.02)
    measured = found.measured(finding)
    assert (measured.certainty, measured.saves_bytes) == ("measured", found.saves_bytes)
    assert measured.saves_bytes == pytest.approx(state, rel=0.02)
    assert ": fits, peak " in measured.evidence


@pytest.mark.slow
@pytest.mark.tpu
def test_half_the_batch_is_measured_where_every_buffer_is_ordinary() -> None:
    """The aggregate's own remedy: half the batch, half of what scales with it."""
    out = SingleDeviceSharding(devices("tpu")[0])
    step = jax.jit(lambda params, x: mlp(params, x).sum(-1), out_shardings=out)
    weights = [array(4096, 4096)] * 4
    found = verify(step, weights, array(1 << 21, 4096), change="half-batch")
    fixed = 4 * size(4096, 4096)
    assert found.peak_bytes_before is not None
    assert found.fits is False
    assert found.peak_bytes == pytest.approx((found.peak_bytes_before + fixed) / 2, rel=0.02)
    assert found.change == "halving the batch of x"


def test_donation_on_the_cpu_frees_the_state_to_the_byte() -> None:
    """What is donated is not there twice; what was donated before stays donated."""

    def decay(params: Any, velocity: Any) -> Any:
        return jax.tree.map(lambda leaf: 0.9 * leaf, (params, velocity))

    layers = [small(64, 256), small(256, 64)]
    step = jax.jit(decay, donate_argnums=0)
    found = verify(step, layers, layers, change="donation")
    assert found.change == "donating velocity[0], velocity[1]"
    assert found.saves_bytes == 2 * size(64, 256)
    assert found.fits is None


@pytest.mark.slow
def test_bfloat16_arguments_take_half() -> None:
    """Arguments in bfloat16 halve a program that is elementwise."""
    step = jax.jit(lambda x, y: (x + y, x - y))
    found = verify(step, small(256, 1024), small(256, 1024), change="bfloat16")
    assert found.peak_bytes_before == pytest.approx(4 * size(256, 1024), abs=KIB)
    assert found.peak_bytes == pytest.approx(2 * size(256, 1024), abs=KIB)


@pytest.mark.slow
def test_replicated_arguments_are_laid_over_the_mesh() -> None:
    """After sharding, each device holds its shard of the arguments and of the returned values."""
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    whole = NamedSharding(mesh, P())
    step = jax.jit(lambda state: jax.tree.map(lambda w: w * 0.9, state), out_shardings={"w": whole})
    found = verify(step, {"w": small(1024, 256, sharding=whole)}, change="sharding")
    assert found.change == "sharding state['w'] over 'data'"
    assert found.peak_bytes_before == pytest.approx(2 * size(1024, 256), abs=KIB)
    assert found.peak_bytes == pytest.approx(2 * size(1024, 256) / 4, abs=KIB)


@pytest.mark.slow
def test_a_variant_of_the_step_is_compiled_in_its_place() -> None:
    """The user's own change, with the step's donation."""
    step = jax.jit(lambda x: jnp.sort(x @ x.T).sum())

    def by_rows(x: Any) -> Any:
        return jax.lax.map(lambda row: jnp.sort(x @ row).sum(), x).sum()

    found = verify(step, small(1024, 16), variant=by_rows)
    assert found.change == "the variant by_rows"
    assert found.saves_bytes is not None
    assert found.saves_bytes > size(1024, 1024) / 2


@pytest.mark.slow
def test_a_limit_that_is_given_decides_what_fits() -> None:
    """GPU and CPU compilers never fail for memory: the limit is the caller's."""
    step = jax.jit(lambda x: x + 1)
    found = verify(step, small(256, 1024), change="bfloat16", limit_bytes=size(256, 1024) // 2)
    assert (found.fits, found.limit_bytes) == (False, size(256, 1024) // 2)


@pytest.mark.slow
def test_numbers_among_the_arguments_are_no_arrays() -> None:
    """A learning rate before the state does not shift what is donated."""
    step = jax.jit(lambda rate, state: state - rate * state)
    found = verify(step, 0.1, small(256, 256), change="donation")
    assert (found.change, found.saves_bytes) == ("donating state", size(256, 256))


@pytest.mark.slow
def test_arrays_are_taken_by_their_shapes() -> None:
    """The arguments may be arrays, and may hold leaves that are not arrays."""
    step = jax.jit(lambda x, mode: x + 1 if mode == "add" else x, static_argnums=1)
    found = verify(step, jnp.ones((64, 64)), "add", change="bfloat16")
    assert found.peak_bytes_before == 2 * size(64, 64)


@pytest.mark.slow
def test_what_does_not_trace_with_the_change_says_why() -> None:
    """A step that insists on float32 gives the reason, and no figure."""

    def strict(x: Any) -> Any:
        if x.dtype != jnp.float32:
            raise TypeError("float32 only")
        return x + 1

    found = verify(jax.jit(strict), small(64, 64), change="bfloat16")
    assert (found.error, found.peak_bytes) == ("TypeError: float32 only", None)
    assert str(found) == "casting x to bfloat16: TypeError: float32 only"


def test_a_compile_is_not_waited_for_longer_than_was_asked() -> None:
    """After the time limit verify gives up, and says so."""
    found = verify(jax.jit(jnp.sin), small(64), variant=jnp.cos, timeout_s=0)
    assert (found.peak_bytes, found.error) == (None, "still compiling after 0 s")


def test_what_cannot_be_asked_is_refused() -> None:
    """No change, two changes, a change that we cannot make, nothing to change, no .lower."""
    step, x = jax.jit(jnp.sin), small(64)
    with pytest.raises(ValueError, match="either change=... or variant=..."):
        verify(step, x)
    with pytest.raises(ValueError, match="either change=... or variant=..."):
        verify(step, x, change="donation", variant=jnp.cos)
    with pytest.raises(ValueError, match="cannot apply 'logits' automatically"):
        verify(step, x, change=Finding("logits", "", "", "", None, "derived", ""))
    with pytest.raises(ValueError, match="returns no undonated argument"):
        verify(jax.jit(jnp.sum), x, change="donation")
    with pytest.raises(TypeError, match="it has no .lower"):
        verify(lambda x: x, x, change="donation")


def test_a_finding_without_a_measurement_stays_derived() -> None:
    """Where nothing was measured the finding is what it was."""
    finding = Finding("donation", "t", "e", "r", 5, "derived", "https://example.org")
    assert Verification("x", None, None, None).measured(finding) is finding


@pytest.mark.slow
def test_jaxs_persistent_cache_does_not_stand_between(tmp_path: Path) -> None:
    """With a cache that has every program already, verify measures the same."""
    step = jax.jit(lambda state: jax.tree.map(lambda leaf: 0.9 * leaf, state))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    try:
        for name, value in zip(names, (str(tmp_path), 0.0), strict=True):
            jax.config.update(name, value)
        step.lower(small(64, 256)).compile()
        found = verify(step, small(64, 256), change="donation")
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)

    assert found.saves_bytes == size(64, 256)


def test_a_dump_that_cannot_be_read_is_not_called_a_timeout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the child leaves nothing, the error says how it ended, and no folder is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    found = verify(jax.jit(jnp.sin), small(64), variant=jnp.cos)

    assert found.error.startswith("the compiler died: exit status 1")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("total", "fits", "verdict"),
    [
        (6, True, "; enough: 2.00 GiB of 8.00 GiB is left"),
        (9, False, "; not enough: 1.00 GiB above 8.00 GiB remains"),
        (7, False, ""),
        (None, None, ""),
    ],
    ids=["fits", "too large", "the compiler counts more", "no limit"],
)
def test_the_text_says_whether_the_change_is_enough(
    total: int | None, fits: bool | None, verdict: str
) -> None:
    """And what remains where it is not."""
    gib = 2**30
    size = None if total is None else total * gib
    found = Verification("donating x", fits, 12 * gib, 6 * gib, size, 8 * gib)

    words = {True: "fits", False: "does not fit", None: "compiles"}[fits]
    assert str(found) == f"donating x: {words}, peak 6.00 GiB (was 12.00 GiB){verdict}"


def test_the_text_says_that_a_change_frees_nothing() -> None:
    """Where the peak is the same."""
    found = Verification("donating x", None, 12 * 2**30, 12 * 2**30)

    assert str(found) == "donating x: compiles, peak 12.00 GiB (unchanged: this frees nothing)"
