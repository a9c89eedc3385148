"""Out-of-memory errors of a live CPU, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError

SIDE = 2**24
PETABYTE = 2**50  # f32[SIDE, SIDE]: more than any machine gives at once
SMALL = jnp.ones(8)
IMPORTS = """
import sys, jax, jax.numpy as jnp
from hbmwatch import HbmOomError, load_peak_summary, watch_hbm
def fill(x):
    return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
"""
PRELUDE = f"{IMPORTS}x = jnp.ones(8)\n"  # what the code of a child begins with


def fill(x: jax.Array) -> jax.Array:
    """Asks for one petabyte."""
    return jnp.broadcast_to(x[0], (SIDE, SIDE)) + 1


def fill_donated(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step that gives its state back and asks for one petabyte."""
    return state + 1, fill(x)


def oom_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> HbmOomError:
    """The HbmOomError that the call raises, its traceback dropped."""
    with pytest.raises(HbmOomError) as caught:
        call(*args, **kwargs)
    oom: HbmOomError = caught.value.with_traceback(None)
    return oom


def fails(call: Callable[..., Any], *args: Any, **kwargs: Any) -> HbmOomError:
    """The HbmOomError that the call raises; what it says of the program is right."""
    with pytest.raises(HbmOomError) as caught:
        call(*args, **kwargs)
    oom = caught.value
    assert oom.report.missing == ()
    assert oom.summary is not None
    assert oom.message.requested_bytes is not None
    assert PETABYTE <= oom.message.requested_bytes <= oom.summary.total_allocation_bytes
    return oom


def start(code: str, *args: object, prelude: str = PRELUDE) -> subprocess.Popen[str]:
    """A child that runs the prelude and this code, its arguments in sys.argv[1:]."""
    command = [sys.executable, "-c", prelude + code, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def outputs(children: Sequence[subprocess.Popen[str]], seconds: float = 280) -> list[str]:
    """What children printed; all must have succeeded."""
    printed = []
    try:
        for child in children:
            out, err = child.communicate(timeout=seconds)
            assert child.returncode == 0, err[-4000:]
            printed.append(out)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return printed


def run(code: str, *args: object) -> str:
    """What a child that runs PRELUDE and this code prints."""
    return outputs([start(code, *args)])[0]
