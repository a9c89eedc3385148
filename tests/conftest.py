"""A CPU backend of four devices, the real TPU and GPU compilers, and the marks of the tests."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import sharing, stores
from tests.environment import QUIET, XLA_FLAGS

# Read when jax and libtpu load, so set before either is imported.
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"

# A shell starts a job in the background with SIGINT ignored, which children would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These tests run only where -m asks for them by name.
OPT_IN = ("benchmark", "clients")

# What decides whether a change lands tries the same examples each time; elsewhere new ones.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests by their parameters and fixtures, and leaves out what only -m asks for."""
    wanted = config.getoption("markexpr")
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        for compiler in sharing.COMPILERS & {_platform(item)}:
            item.add_marker(compiler)
    left_out = [
        item
        for item in items
        if any(item.get_closest_marker(m) and m not in wanted for m in OPT_IN)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _platform(item: pytest.Item) -> object:
    """The platform that a test compiles for: its parameter `platform`, or that of its `case`."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("platform", getattr(parameters.get("case"), "platform", None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tells the compilers' helpers which marks the test has; skips it without its compiler."""
    sharing.RUN.marks = frozenset(mark.name for mark in item.iter_markers())
    compilers = sorted(sharing.COMPILERS & sharing.RUN.marks)
    if compilers:
        from tests.programs import why_not  # not at the top: that imports jax

        reasons = [reason for compiler in compilers if (reason := why_not(compiler))]
        if reasons:
            pytest.skip(reasons[0])


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for all workers, whose temporary folders lie side by side."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    sharing.RUN.folder = base / "shared"
    sharing.RUN.folder.mkdir(exist_ok=True)


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Any]:
    """watch_hbm that keeps its profiles in the test's folder."""
    from hbmwatch import watch_hbm  # not at the top: that imports jax

    return functools.partial(watch_hbm, logdir=tmp_path)


@pytest.fixture(scope="session")
def store_servers() -> Iterator[stores.Servers]:
    """An S3 server and a GCS emulator."""
    pytest.importorskip("moto", reason="needs the extra [test]")
    with stores.running() as servers:
        yield servers


@pytest.fixture
def servers(store_servers: stores.Servers, monkeypatch: pytest.MonkeyPatch) -> stores.Servers:
    """The servers, which clients in children of this test find."""
    for name, value in store_servers.environment.items():
        monkeypatch.setenv(name, value)
    return store_servers
