"""Every function of the page's script is called in a real browser, and every control has a home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hbmwatch
from tests.report.pages import REPORT, Show, click, hover

PACKAGE = Path(hbmwatch.__file__).parent
# What a reader does, as the keys that a table gets and the elements that get a click.
KEYS = (
    "\ue015\ue013\ue00f\ue00e\ue010\ue011\ue00c"  # down, up, page down, page up, end, home, escape
)
CLICKS = (
    "th[data-key=padding] button", "th[data-key=lifetime] button", "th[data-key=order] button",
    ".chip", ".chip", "#fold", "#fold", "#table tr[data-id] td", "#map rect[data-i='2']",
)  # fmt: skip

# A label that a reader sees or hears -> the file that makes the control and listens to it.
CONTROLS = {
    "Skip to the buffers": "main.mjs",
    "Memory over the program": "chart.mjs",
    "Roles to show": "tools.mjs",
    "Filter by name, line, shape": "tools.mjs",
    "equal buffers in one row": "tools.mjs",
    "arrow keys move": "table.mjs",
    "as areas, by role": "treemap.mjs",
    "Stack, innermost first": "inspector.mjs",
    "No buffer matches.": "inspector.mjs",
}


def called_functions(browser: Any) -> dict[str, bool]:
    """Function name -> whether it was called since coverage was started."""
    (script,) = (
        script
        for script in browser.execute_cdp_cmd("Profiler.takePreciseCoverage", {})["result"]
        if script["url"].endswith("report.html")
    )
    return {
        function["functionName"]: function["ranges"][0]["count"] > 0
        for function in script["functions"]
        if function["functionName"]
    }


@pytest.mark.slow
def test_every_function_is_called(show: Show, browser: Any) -> None:
    """No function of the script is without use, and none fails where it is called."""
    browser.execute_cdp_cmd("Profiler.enable", {})
    browser.execute_cdp_cmd("Profiler.startPreciseCoverage", {"callCount": True})
    show(REPORT)
    hover(browser, "#chart")
    hover(browser, "#map rect[data-i='3']")
    for selector in CLICKS:
        click(browser, selector)
    browser.find_element("id", "table").send_keys(KEYS)
    browser.execute_script("document.getElementById('scroll').dispatchEvent(new Event('scroll'))")
    browser.execute_script("document.querySelector('.close').click()")
    browser.find_element("id", "filter").send_keys("none such")
    called = called_functions(browser)
    browser.execute_cdp_cmd("Profiler.stopPreciseCoverage", {})

    assert len(called) > 80
    assert [name for name, is_called in called.items() if not is_called] == []


@pytest.mark.parametrize("label", CONTROLS)
def test_a_control_is_in_one_file(label: str) -> None:
    """Whoever looks for a control of the page finds one file of the package."""
    files = (file for kind in ("py", "mjs", "html", "css") for file in PACKAGE.rglob(f"*.{kind}"))

    assert [file.name for file in files if label in file.read_text()] == [CONTROLS[label]]
