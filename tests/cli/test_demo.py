"""`hbmwatch demo`: an out-of-memory error on the CPU and for a TPU, or why it cannot start."""

from __future__ import annotations

import json
import os

import pytest

from hbmwatch import OomReport
from tests import programs
from tests.cli.support import run, run_in_child


def test_it_runs_out_of_memory_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text starts with the program, and the JSON is the report alone."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    status, out, _ = run(capsys, "demo")
    assert status == 0
    assert out.startswith("The program of https://openxla.org/xla/oom_debugging, on cpu")

    status, out, _ = run(capsys, "demo", "--json")
    report = OomReport.from_dict(json.loads(out))
    assert (status, report.function) == (0, "oom")
    assert report.summary is not None


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "status", "text"),
    [
        ("v5e:2x2", 0, b"ran out of HBM while compiling for TPU v5 lite"),
        ("nonsense", 1, b"hbmwatch: cannot compile for 'nonsense': "),
    ],
)
def test_it_compiles_for_a_topology(topology: str, status: int, text: bytes) -> None:
    """The TPU compiler's failure is shown without a TPU; an unknown topology is an error."""
    if reason := programs.why_not("tpu"):
        pytest.skip(reason)
    ended = run_in_child("demo", "--on", topology)
    assert ended.returncode == status
    assert text in (ended.stderr if status else ended.stdout)


def test_it_says_that_jax_has_no_such_backend() -> None:
    """JAX_PLATFORMS names a platform that is not installed: one line, with JAX's reason."""
    ended = run_in_child("demo", env={**os.environ, "JAX_PLATFORMS": "nosuch"})
    start = b"hbmwatch: cannot start a JAX backend: Unable to initialize backend 'nosuch': "
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(start)
    assert ended.stderr.count(b"\n") == 1
