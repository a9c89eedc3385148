"""What surrounds a step may fail: folders, host names, logging, descriptors. The step does not."""

from __future__ import annotations

import logging
import socket
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import watch_hbm
from hbmwatch._profiles import runs
from tests.live import SMALL, fill, oom_of, run

pytestmark = pytest.mark.slow


def double(x: jax.Array) -> jax.Array:
    """A step that fits."""
    return x + x


def nowhere(path: Path) -> str:
    """A folder that cannot be made: a file is in its place."""
    (path / "file").write_text("")
    return str(path / "file" / "logs")


def test_a_step_that_fits_runs_although_no_folder_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """capture="always" loses its trace: with a log folder, and without a temporary folder."""
    step = watch_hbm(nowhere(tmp_path), capture="always")(double)
    assert step(SMALL).tolist() == [2.0] * 8

    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError("No usable temporary directory found")

    for name in ("gettempdir", "mkdtemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    step = watch_hbm(double, capture="always")
    assert step(jnp.ones(9)).tolist() == [2.0] * 9
    assert "Out of memory" in str(oom_of(watch_hbm(fill, capture="always"), SMALL))


def test_a_host_without_a_name_has_a_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """gethostname may fail in a container."""

    def refuse() -> str:
        raise OSError("no name")

    monkeypatch.setattr(socket, "gethostname", refuse)
    assert runs.host_name() == "host"
    oom = oom_of(watch_hbm(fill, logdir=tmp_path), SMALL)
    assert (oom.report.missing, [f.name for f in tmp_path.rglob("*.pb")]) == (
        (),
        ["host.xplane.pb"],
    )


def test_a_logging_filter_that_fails_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What fails while a report is made is logged, and that may fail too."""

    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("no filter")

    logger = logging.getLogger("hbmwatch")
    monkeypatch.setattr(logger, "filters", [Broken()])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # of isEnabledFor
    oom = oom_of(watch_hbm(fill, logdir=nowhere(tmp_path)), SMALL)
    assert oom.summary is not None
    assert any("profile" in sentence for sentence in oom.report.missing)


NO_DESCRIPTOR = """
import os
x = jnp.ones(8)
step = watch_hbm(fill)
jax.block_until_ready(jax.jit(lambda x: x + 1)(x))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
try:
    step(x)
except jax.errors.JaxRuntimeError as error:
    text = str(error)
    reasons = [*getattr(error, "__notes__", ())]
for descriptor in held:
    os.close(descriptor)
print("Out of memory" in text, any("Too many open files" in reason for reason in reasons))
"""


def test_without_a_free_descriptor_the_text_says_why_there_is_no_report() -> None:
    """Modules cannot be loaded then; the out-of-memory error gets out, with the reason."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    assert run(f"{limit}\n{NO_DESCRIPTOR}") == "True True\n"
