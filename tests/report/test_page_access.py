"""Everyone can read the page: axe-core, the keyboard alone, a screen reader, zoom, motion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.report.pages import POINTS, REPORT, Show, audit, click, names, texts

LEFT, RIGHT, DOWN = "\ue012", "\ue014", "\ue015"
HOME, END, ENTER, ESCAPE, TAB = "\ue011", "\ue010", "\ue007", "\ue00c", "\ue004"

# What a page shows, as an address: a moment, each kind of map, a group.
VIEWS = {
    "the peak": "",
    "a flame graph at another moment": "#by=function&at=75",
    "a group": "#in=other+temporaries&find=layer",
}


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation(show: Show, axe: str, view: str, dark: bool) -> None:
    """axe-core's rules for WCAG 2.2 A and AA, and its best practices, hold in both schemes."""
    browser = show(REPORT, dark=dark, address=VIEWS[view])
    click(browser, ".marks")
    found = audit(browser, axe)
    assert found["violations"] == []
    assert found["passes"] > 30


def focused(browser: Any) -> str:
    """The id of the element that has the focus; else its class or tag."""
    script = "const e = document.activeElement; return e.id || e.className || e.tagName"
    return str(browser.execute_script(script))


@pytest.mark.slow
def test_the_keyboard_reaches_all_that_answers(show: Show) -> None:
    """Tab goes through findings, chart, grouping, map, inspector, filter and table, in order."""
    browser = show(REPORT)
    body = browser.find_element("tag name", "body")
    reached: list[str] = []
    for _ in range(40):
        browser.switch_to.active_element.send_keys(TAB) if reached else body.send_keys(TAB)
        reached.append(focused(browser))
    stops = "skip marks chart by map inspector filter fold copy-text copy-csv table".split()
    assert list(dict.fromkeys(stop for stop in reached if stop in stops)) == stops


def test_the_chart_is_read_by_keyboard(show: Show) -> None:
    """Arrow keys choose a moment, which a screen reader hears, and P goes back to the peak."""
    browser = show(REPORT)
    chart = browser.find_element("id", "chart")
    heard = []
    for keys in (RIGHT, LEFT + LEFT, HOME, END, "p"):
        chart.send_keys(keys)
        heard.append(chart.get_attribute("aria-valuetext"))
    assert heard == [
        "point 51: 2.08 GiB",
        "point 49: 2.08 GiB",
        "point 0: 0 B",
        f"point {POINTS - 1}: 0 B",
        "peak at point 50: 2.13 GiB",
    ]
    assert chart.get_attribute("role") == "slider"
    assert chart.get_attribute("aria-valuenow") == "50"


def test_the_map_is_read_by_keyboard(show: Show) -> None:
    """Arrow keys move over groups and buffers, which a screen reader hears; Enter zooms into a
    group or selects a buffer; Escape goes back."""
    browser = show(REPORT)
    place = "return document.getElementById(document.getElementById('map').getAttribute("
    place += "'aria-activedescendant')).getAttribute('aria-label')"
    box = browser.find_element("id", "map")
    heard = []
    for _ in range(3):
        box.send_keys(DOWN)
        heard.append(browser.execute_script(place))
    assert heard == [
        "group other temporaries: 1.38 GiB, 64.7%",
        "late: 1.00 GiB, other temporaries",
        "long: 128 MiB, other temporaries",
    ]
    assert texts(browser, "#inspector h3") == ["jit(step)/long"]
    box.send_keys(ENTER)
    assert texts(browser, "#table tr.active td.c-name") == ["long"]
    box.send_keys(ESCAPE + HOME + ENTER)
    assert texts(browser, "#way") == ["all \u203a other temporaries"]
    assert names(browser) == ["late", "layer_*/same", "long"]
    box.send_keys(ESCAPE)
    assert texts(browser, "#way") == [""]
    assert len(names(browser)) == 6


def test_the_focus_stays_where_the_reader_is(show: Show) -> None:
    """A group that is hidden by keyboard keeps its button, and a step back leads to the map."""
    browser = show(REPORT, address="#in=parameters")
    browser.find_element("css selector", ".chip").send_keys(ENTER)
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "false"
    browser.find_element("css selector", "#way button").send_keys(ENTER)
    assert focused(browser) == "map"


def test_at_200_percent_nothing_is_lost(show: Show) -> None:
    """In half the width and height, as zoom makes it, no part hides another or is cut off."""
    browser = show(REPORT)
    screen = {"width": 640, "height": 450, "deviceScaleFactor": 2, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(width) == 0
    style = "return getComputedStyle(document.querySelector('.chart-card')).position"
    assert browser.execute_script(style) == "static"
    # Each control that is scrolled to is on top of whatever else is at its place.
    hidden = browser.execute_script(
        "return [...document.querySelectorAll('button, select, input, a')].filter((e) => {"
        "if (!e.checkVisibility() || e.matches('.skip')) return false;"
        "e.scrollIntoView({block: 'center', inline: 'center'});"
        "const box = e.getClientRects()[0];"
        "const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];"
        "const top = document.elementFromPoint(x, y);"
        "return !e.contains(top) && !top?.contains(e) }).map((e) => e.outerHTML)"
    )
    assert hidden == []


def test_without_motion_nothing_moves(show: Show) -> None:
    """Whoever asks for reduced motion sees no transition and no animation."""
    browser = show(REPORT)
    moving = (
        "return [...document.querySelectorAll('*')].filter((e) => { const s = getComputedStyle(e);"
        "return s.transitionDuration !== '0s' || s.animationName !== 'none' }).length"
    )
    assert browser.execute_script(moving) > 0
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    assert browser.execute_script(moving) == 0


def test_a_group_has_its_name_beside_its_color(show: Show) -> None:
    """Bands of the chart, groups of the map, rows and buttons say what their color stands for."""
    browser = show(REPORT)
    assert texts(browser, "#labels text") == ["parameters", "optimizer state", "other temporaries"]
    assert [text.rsplit(" ", 2)[0] for text in texts(browser, "#map .header text")] == [
        "other temporaries",
        "parameters",
        "optimizer state",
    ]
    roles = ["parameters", "optimizer state", "other temporaries", "small buffers"]
    assert texts(browser, ".chip .word") == roles
    assert json.dumps(texts(browser, "#table td.c-role")).count("other temporaries") == 3
