"""`%load_ext hbmwatch` in a real IPython shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("IPython")
pytestmark = pytest.mark.slow

CELLS = """
import jax, jax.numpy as jnp
def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
%load_ext hbmwatch
y = jax.block_until_ready(jax.jit(fill)(jnp.ones(8)))
print("next cell")
int("no number")
from hbmwatch import watch_hbm
z = watch_hbm(fill)(jnp.ones(8))
magic = get_ipython().run_cell_magic
magic("hbm", "profiles", "answer = 41\\nanswer + 1")
magic("hbm", "one two", "answer = 0")
magic("hbm", "profiles", "x = jnp.ones(8)\\n!echo from a shell\\ny = jax.jit(lambda: fill(x))()")
%unload_ext hbmwatch
y = jax.block_until_ready(jax.jit(fill)(jnp.ones(8)))
"""


def test_an_oom_in_a_cell_shows_its_report(tmp_path: Path) -> None:
    """Of a bare jit, a watched step and %%hbm, once each; other errors are shown as ever."""
    command = [
        sys.executable,
        "-m",
        "IPython",
        "--simple-prompt",
        "--no-banner",
        "--colors=NoColor",
    ]
    shell = subprocess.run(
        command, input=CELLS, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=280
    )

    cells = shell.stdout.split("In [")
    reports = [cell.count("Largest buffers at the peak") for cell in cells]
    assert sum(reports) == 3, shell.stdout
    shown = [cell for cell, count in zip(cells, reports, strict=True) if count]
    assert [cell for cell in shown if "1.00 PiB" not in cell] == []
    assert "from a shell" in shell.stdout
    assert "]: 42" in shell.stdout
    assert "UsageError: %%hbm takes one argument at most" in shell.stderr
    assert list((tmp_path / "profiles" / "plugins" / "profile").glob("*/*.xplane.pb"))
    lines = [line for line in shell.stdout.splitlines() if "1.00 PiB  f32[" in line]
    assert {line.split()[-1] for line in lines} == {"In[2]:1"}  # where the function was defined
    assert "next cell" in shell.stdout
    assert "invalid literal for int()" in shell.stdout
