"""A report in the applications that show notebooks: JupyterLab, the classic one, and marimo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report.pages import REPORT, wait

pytestmark = pytest.mark.slow

MARIMO = """
import marimo
app = marimo.App()
@app.cell
def _():
    from tests.report.pages import REPORT
    REPORT
    return
"""


@contextmanager
def served(folder: Path, *command: str) -> Iterator[str]:
    """The address of a server that a command starts; {port} in it is a free one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    arguments = [sys.executable, "-m", *(word.format(port=port) for word in command)]
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            yield f"http://localhost:{port}"
        finally:
            server.kill()


def open_when_there(browser: Any, address: str) -> None:
    """Open a page of a server that may still be starting."""

    def answers(_: Any) -> bool:
        try:
            return bool(urllib.request.urlopen(address, timeout=60).status == 200)
        except OSError:
            return False

    wait(browser).until(answers)
    browser.get(address)


def fits(browser: Any, frame: Any) -> bool:
    """Whether a frame is as high as the page in it."""
    browser.switch_to.frame(frame)
    inner = browser.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
    browser.switch_to.parent_frame()
    return bool(frame.size["height"] == inner > 1000)


# Of each application: how it is started, the path of a notebook, and what holds a cell's output.
SERVER = (
    *("--no-browser", "--allow-root", "--port={port}"),
    *("--ServerApp.token=", "--ServerApp.password="),
)
JUPYTERS = {
    # Its other extension manager asks a package index.
    "jupyterlab": ((*SERVER, "--LabApp.extension_manager=readonly"), "lab/tree", ".jp-OutputArea"),
    "nbclassic": (SERVER, "notebooks", ".output_area"),
}


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "untrusted"])
@pytest.mark.parametrize("application", JUPYTERS)
def test_jupyter_shows_the_page_or_the_text(
    browser: Any, tmp_path: Path, application: str, is_trusted: bool
) -> None:
    """The page in a frame that fits; in a notebook that is not trusted the picture and the text."""
    pytest.importorskip(application)
    nbformat = pytest.importorskip("nbformat")
    data = {"text/html": REPORT._repr_html_(), "text/plain": str(REPORT)}
    output = nbformat.v4.new_output("display_data", data=data)
    cell = nbformat.v4.new_code_cell("report", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "oom.ipynb")
    if is_trusted:
        trust = [sys.executable, "-m", "jupyter", "trust", "oom.ipynb"]
        environment = {**os.environ, "JUPYTER_DATA_DIR": str(tmp_path / "data")}
        subprocess.run(trust, cwd=tmp_path, env=environment, check=True, capture_output=True)
    options, folder, area = JUPYTERS[application]
    with served(tmp_path, application, *options) as address:
        open_when_there(browser, f"{address}/{folder}/oom.ipynb")
        shown = wait(browser).until(lambda b: b.find_elements("css selector", f"{area} pre"))
        frames = browser.find_elements("css selector", "iframe.hbmwatch")

        assert len(frames) == is_trusted
        if is_trusted:
            browser.execute_script("arguments[0].scrollIntoView()", frames[0])
            wait(browser).until(lambda b: fits(b, frames[0]))
            assert not shown[0].is_displayed()
        else:
            assert shown[0].is_displayed() and "jit_step" in shown[0].text
            assert browser.find_element("css selector", f"{area} img").is_displayed()


def test_marimo_shows_the_page(browser: Any, tmp_path: Path) -> None:
    """The frame fits, and so does the one that marimo puts around it."""
    pytest.importorskip("marimo")
    (tmp_path / "oom.py").write_text(MARIMO)
    options = ("run", "oom.py", "--headless", "--port", "{port}", "--no-token")
    with served(tmp_path, "marimo", *options) as address:
        open_when_there(browser, address)
        (outer,) = wait(browser).until(lambda b: b.find_elements("css selector", ".output iframe"))
        browser.switch_to.frame(outer)
        (inner,) = wait(browser).until(lambda b: b.find_elements("css selector", "iframe.hbmwatch"))
        wait(browser).until(lambda b: fits(b, inner))
        height = inner.size["height"]
        assert not browser.find_element("css selector", "iframe + div").is_displayed()
        browser.switch_to.default_content()
        assert outer.size["height"] >= height
