"""A browser for the tests of the page."""

from __future__ import annotations

import importlib.resources
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomReport
from tests.report.pages import Show

# The data of a large report is inflated first.
_UNTIL_SHOWN = """
const shown = (done) => document.querySelector("#report h1") ? done() : setTimeout(shown, 5, done);
shown(arguments[0]);
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver (Debian: chromium, chromium-driver) are not here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


@pytest.fixture(autouse=True)
def _as_a_screen(request: pytest.FixtureRequest) -> None:
    """The browser shows each test a screen, also where the test before it had paper or a phone."""
    if "browser" in request.fixturenames:
        opened = request.getfixturevalue("browser")
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which a package for another browser driver brings."""
    pytest.importorskip("axe_playwright_python")
    return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a report; afterwards the console must be empty and nothing loaded from elsewhere."""

    def opened(
        report: OomReport, dark: bool = False, phone: bool = False, address: str = ""
    ) -> Any:
        screen = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
        metrics = {**screen, "deviceScaleFactor": 1, "mobile": phone}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get("about:blank")  # another address of an open page would not load it again
        report.save_html(tmp_path / "report.html")
        browser.get((tmp_path / "report.html").as_uri() + address)
        browser.execute_async_script(_UNTIL_SHOWN)
        return browser

    yield opened
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
