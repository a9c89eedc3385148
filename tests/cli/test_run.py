"""`hbmwatch run`: a script runs as without it, and an OOM shows its report."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import run_in_child

pytestmark = pytest.mark.slow

# What a script can see of how it was started.
SEEN = """
import multiprocessing, os, pickle, sys
class Here: pass
print(__name__, sys.argv[1:], os.path.basename(sys.argv[0]), os.path.basename(__file__))
print(sys.modules["__main__"].__file__ == __file__)
print(type(pickle.loads(pickle.dumps(Here()))) is Here)
print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
"""
OOM = """
import jax, jax.numpy as jnp, sys
def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
print("step 0", sys.argv[1:])
jax.block_until_ready(jax.jit(fill)(jnp.ones(8)))
"""


def bare(script: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The script run by Python alone."""
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=250)


def test_a_script_sees_what_it_sees_without(tmp_path: Path) -> None:
    """Its name, arguments, path and main module."""
    script = tmp_path / "seen.py"
    script.write_text(SEEN)

    ran = run_in_child("run", str(script), "--steps", "3", "-m")

    expected = bare(script, "--steps", "3", "-m").stdout
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, b"")
    assert expected == b"__main__ ['--steps', '3', '-m'] seen.py seen.py\nTrue\nTrue\nTrue\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('a sentence')", 1),
        ("raise OSError('of the script')", 1),
        ("def f():\n    1 / 0\nf()", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_a_script_ends_as_it_ends_without(code: str, status: int, tmp_path: Path) -> None:
    """With its exit status, and the traceback of its own frames."""
    script = tmp_path / "ends.py"
    script.write_text(code)

    ran, expected = run_in_child("run", str(script)), bare(script)

    assert (ran.returncode, expected.returncode) == (status, status)
    assert ran.stderr == expected.stderr


def test_an_oom_prints_the_report_in_place_of_frames(tmp_path: Path) -> None:
    """On stderr, with exit status 1, in the log folder and as a page."""
    (tmp_path / "train.py").write_text(OOM)
    options = ["--html", "oom.html", "--logdir", "logs"]

    ran = run_in_child("run", *options, "train.py", "--html", cwd=tmp_path)

    err = ran.stderr.decode()
    assert (ran.returncode, ran.stdout) == (1, b"step 0 ['--html']\n")
    assert "Traceback" not in err.partition("Peak of")[2]
    assert "Peak of jit_fill: 1.00 PiB" in err
    assert "the report is in oom.html" in err
    assert (tmp_path / "oom.html").read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "logs").rglob("report.json"))) == 1


def test_a_module_runs_by_name(tmp_path: Path) -> None:
    """As with python -m."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")

    ran = run_in_child("run", "-m", "pkg.train", "--steps", "3", cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (0, b"__main__ pkg ['--steps', '3']\n")


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    """Is a sentence."""
    ran = run_in_child("run", "none.py", cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (3, b"hbmwatch: there is no file none.py\n")
