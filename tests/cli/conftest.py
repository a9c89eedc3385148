"""A profile for the commands to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_TWO_MODULES = """
import sys
import jax
import jax.numpy as jnp

def double(x):
    return x + x

def triple(x):
    return jnp.outer(x, x) * 3

x = jnp.ones(100_000)
with jax.profiler.trace(sys.argv[1]):
    jax.jit(double).lower(x).compile()
    jax.jit(triple).lower(x[:3000]).compile()
"""


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log folder that a bare jax.profiler.trace wrote, in a process with no other module."""
    logdir = tmp_path_factory.mktemp("cpu")
    subprocess.run([sys.executable, "-c", _TWO_MODULES, str(logdir)], check=True, timeout=250)
    return logdir
