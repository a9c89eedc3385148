"""Every function of the page's script is called in a real browser, and every control has a home."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import hbmwatch
from tests.report.pages import REPORT, Show, click, hover

PACKAGE = Path(hbmwatch.__file__).parent
# What a reader does, as the keys that an element gets and the elements that get a click.
MOVES = "\ue015\ue013\ue00f\ue00e\ue010\ue011"  # down, up, page down, page up, end, home
ESCAPE = "\ue00c"
CLICKS = (
    "th[data-key=padding] button", "th[data-key=lifetime] button", "th[data-key=order] button",
    ".chip", ".chip", "#fold", "#fold", "#table tr[data-id] td", "#map rect[data-i='2']",
    ".marks", ".marks", "#copy-text", "#copy-csv",
)  # fmt: skip
GROUPINGS = ("line", "function", "path", "shape", "layer", "role")

# A label that a reader sees or hears -> the file that makes the control and listens to it.
CONTROLS = {
    "Skip to the buffers": "main.mjs",
    "Memory over the program": "chart.mjs",
    "Groups to show": "tools.mjs",
    "Group by ": "choice.mjs",
    "Mark its buffers": "sections.mjs",
    "Copy as CSV": "copy.mjs",
    "Back to the peak": "chart.mjs",
    "Filter by name, line, shape": "tools.mjs",
    "equal buffers in one row": "tools.mjs",
    "arrow keys move": "table.mjs",
    "as areas, by group": "map.mjs",
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
    # So much data that it is deflated.
    show(dataclasses.replace(REPORT, notes=("x" * 20_000,) * 60))
    hover(browser, "#chart")
    hover(browser, "#map rect[data-i='3']")
    hover(browser, ".findings li")
    for selector in CLICKS:
        click(browser, selector)
    for grouping in GROUPINGS:
        browser.find_element("css selector", f"#by option[value={grouping}]").click()
        browser.find_element("id", "map").send_keys(MOVES[0] + "\ue007" + ESCAPE)  # enter
    for selector in ("table", "map", "chart"):
        browser.find_element("id", selector).send_keys(MOVES)
    browser.execute_script("location.hash = '#at=3&in=outputs'")
    browser.execute_script("document.getElementById('scroll').dispatchEvent(new Event('scroll'))")
    browser.execute_script("document.querySelector('.close').click()")
    click(browser, "#back")
    browser.find_element("id", "map").send_keys(MOVES[-1] + "\ue007")
    click(browser, "#way button")
    browser.execute_cdp_cmd("Page.printToPDF", {})
    browser.find_element("id", "filter").send_keys("none such")
    browser.execute_script("dispatchEvent(new Event('resize'))")
    called = called_functions(browser)
    browser.execute_cdp_cmd("Profiler.stopPreciseCoverage", {})

    assert len(called) > 150
    not_called = {name for name, is_called in called.items() if not is_called}
    # Only in a notebook's frame, in an old browser, and for right-to-left words:
    # test_page_notebook, _structure and _extremes.
    assert not_called == {"tellHeight", "showText", "ownText", "ownWord"}


@pytest.mark.parametrize("label", CONTROLS)
def test_a_control_is_in_one_file(label: str) -> None:
    """Whoever looks for a control of the page finds one file of the package."""
    files = (file for kind in ("py", "mjs", "html", "css") for file in PACKAGE.rglob(f"*.{kind}"))

    assert [file.name for file in files if label in file.read_text()] == [CONTROLS[label]]
