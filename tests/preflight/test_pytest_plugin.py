"""The marker limit_hbm, in runs of pytest of their own."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import jax
import jax.numpy as jnp
import pytest
import unittest

X = jax.ShapeDtypeStruct((1, 512, 512), jnp.float32)

@pytest.fixture
def one():
    return 1

@pytest.mark.limit_hbm("2MB")
def test_below(one):
    return (lambda x: x + one), X

@pytest.mark.limit_hbm("1 MiB")
def test_above():
    return (lambda x: x + 1), X

@pytest.mark.limit_hbm("1 MiB")
def test_nothing():
    pass

@pytest.mark.limit_hbm(2 * 2**20)
def test_bytes():
    return (lambda x: x + 1), X

@pytest.mark.limit_hbm(14)
def test_no_unit():
    return (lambda x: x + 1), X

@pytest.mark.limit_hbm("2 MiB")
async def test_async():
    return (lambda x: x + 1), X

class TestMethods(unittest.TestCase):
    @pytest.mark.limit_hbm("2 MiB")
    def test_method(self):
        self.returned = (lambda x: x + 1), X

def test_plain(one):
    assert one == 1
"""


def ran(folder: Path) -> str:
    """What a run of pytest prints, with this plugin alone."""
    plugin = "hbmwatch._preflight.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    root = Path(__file__).parent.parent.parent
    environment["PYTHONPATH"] = f"{root}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.slow
def test_a_step_above_the_limit_fails_with_its_report(tmp_path: Path) -> None:
    """Fixtures work, the failure is the verdict and the report, and other tests are untouched."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "test_memory.py").write_text(TESTS)
    out = ran(tmp_path)

    assert "5 failed, 3 passed" in out
    assert "limit_hbm: test_async must not be async" in out
    assert "limit_hbm cannot check test_method" in out
    assert "Does not fit cpu: needs 2 MiB; 1 MiB available; 1 MiB over the limit" in out
    assert "hbmwatch: " in out
    assert "limit_hbm: '14' has no unit: write 14GiB" in out
    assert "test_nothing must return a step and its arguments" in out


def test_the_plugin_loads_nothing_until_a_test_asks(tmp_path: Path) -> None:
    """A run without the marker imports neither jax nor numpy for it."""
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n    assert not {'jax', 'numpy'} & set(sys.modules)\n"
    )

    assert "1 passed" in ran(tmp_path)


def test_an_installation_registers_the_plugin() -> None:
    """The entry point that setup.cfg declares is this module."""
    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parent.parent.parent / "setup.cfg")
    declared = parser["options.entry_points"]["pytest11"].strip()

    assert declared == "hbmwatch = hbmwatch._preflight.pytest_plugin"
