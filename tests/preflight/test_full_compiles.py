"""What takes minutes: whole compiles against the buffer assignment, and the answers near a limit.

All are marked slow. The answers near a limit, which take up to half an hour, run only where
HBMWATCH_FULL_COMPILES is set.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import pytest

from hbmwatch import fits, largest
from tests.preflight import steps

FULL = pytest.mark.skipif(
    "HBMWATCH_FULL_COMPILES" not in os.environ, reason="HBMWATCH_FULL_COMPILES is not set"
)
OF_TODAY = pytest.mark.skipif(
    jax.__version__ != "0.10.2", reason="the sizes are those of jax 0.10.2"
)


def matrix() -> list[Any]:
    """Each program on one target, in turn; with HBMWATCH_FULL_COMPILES each program on all."""
    targets = {"v5e": pytest.mark.tpu, "h100": pytest.mark.gpu, "v6e": pytest.mark.tpu}
    chosen = [
        (name, on)
        for number, name in enumerate(steps.SMALL)
        for place, on in enumerate(targets)
        if "HBMWATCH_FULL_COMPILES" in os.environ or number % len(targets) == place
    ]
    return [pytest.param(name, on, marks=targets[on]) for name, on in chosen]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "on"), matrix())
def test_the_assignment_has_the_figures_of_the_whole_compile(name: str, on: str) -> None:
    """Peak and total are equal to the byte.

    A compile of milliseconds may finish before it is stopped, and is called compiled then.
    """
    (step, args_of), size = steps.SMALL[name]
    assigned = fits(step, *args_of(size), on=on, proof="assigned")
    compiled = fits(step, *args_of(size), on=on)

    assert (compiled.proof, compiled.fits, assigned.fits) == ("compiled", True, True)
    assert (assigned.proof == "assigned") == (assigned.code_bytes is None)
    figures = (assigned.peak_bytes, assigned.total_bytes)
    assert figures == (compiled.peak_bytes, compiled.total_bytes)


@FULL
@OF_TODAY
@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.timeout(7200)
def test_the_largest_batch_of_an_mlp_on_a_v5e() -> None:
    """The code decides: by assignment it would be 116,712."""
    step, args_of = steps.mlp()
    found = largest(step, args_of, on="v5e", multiple_of=8, timeout_s=3600)

    assert (found.size, found.next_size, found.proof) == (116672, 116680, "compiled")


@FULL
@OF_TODAY
@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.timeout(7200)
def test_the_largest_batch_of_a_transformer_on_a_v6e() -> None:
    """The code decides: by assignment it would be 113."""
    step, args_of = steps.gpt()
    found = largest(step, args_of, on="v6e", timeout_s=3600)

    assert (found.size, found.next_size, found.proof) == (112, 113, "compiled")


@FULL
@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.timeout(3600)
def test_a_sawtooth_on_an_h100_keeps_the_promise() -> None:
    """With a share that is below what XLA aims at, sizes fit again, and that is said."""
    step, args_of = steps.mlp()
    found = largest(
        step,
        args_of,
        on="h100",
        multiple_of=8,
        start=65536,
        memory_fraction=0.70,
        proof="assigned",
    )

    assert found.size is not None and found.next_size == found.size + 8
    assert found.tried[found.size].fits is True
    assert found.tried[found.next_size].fits is False
    assert jax.__version__ != "0.10.2" or not found.monotone
