"""What the page does, in a real browser: sorting, hovering, the keyboard, the filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hbmwatch import PeakOp
from tests.report.pages import GIB, OPS, PEAK, POINTS, REPORT, Show, click, hover, names, texts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("size", lambda op: -op.size_bytes),
        ("padding", lambda op: -op.padding_bytes if op.instruction else 0),
        ("order", OPS.index),
    ],
)
def test_a_heading_sorts(show: Show, key: str, number: Callable[[PeakOp], int]) -> None:
    """The orders of XProf's viewer, larger ones first among equals, and at a second click back."""
    browser = show(REPORT)
    click(browser, "#fold")
    if key != "size":
        click(browser, f"th[data-key={key}] button")
    expected = sorted(OPS, key=lambda op: (number(op), -op.size_bytes))
    assert _sizes(browser) == [op.size_bytes for op in expected]
    heading = browser.find_element("css selector", f"th[data-key={key}]")
    first = heading.get_attribute("aria-sort")
    click(browser, f"th[data-key={key}] button")
    back = sorted(OPS, key=lambda op: (-number(op), -op.size_bytes))
    assert _sizes(browser) == [op.size_bytes for op in back]
    assert {first, heading.get_attribute("aria-sort")} == {"ascending", "descending"}


def _sizes(browser: Any) -> list[int]:
    """The exact size of each row, as the inspector says it."""
    table = browser.find_element("id", "table")
    found = []
    table.send_keys("\ue011")  # home
    for _ in names(browser):
        size = texts(browser, "#inspector dd")[0].split("(")[1].split(" ")[0]
        found.append(int(size.replace(",", "")))
        table.send_keys("\ue015")  # arrow down
    return found


def test_the_lifetime_sorts_from_the_longest(show: Show) -> None:
    """What lives through the whole program comes first, then 85, 60 and 20 points."""
    browser = show(REPORT)
    click(browser, "th[data-key=lifetime] button")
    assert names(browser)[-4:-1] == ["long", "layer_*/same", "late"]


@pytest.mark.slow
def test_hovering_draws_the_lifetime_over_the_chart(show: Show) -> None:
    """The hovered row's buffers are drawn from the point at which they are made to their last."""
    browser = show(REPORT)
    late = next(n for n, name in enumerate(names(browser), start=2) if name == "late")
    hover(browser, f"#table tbody tr:nth-child({late})")
    box = browser.execute_script(
        "const b = document.querySelector('#lifetimes .life').getBBox();"
        "const p = document.querySelector('#areas .rest').getBBox();"
        "return [(b.x - p.x) / p.width, b.width / p.width, b.height / p.height]"
    )
    assert box == pytest.approx([61 / POINTS, 20 / POINTS, GIB / PEAK], abs=0.005)
    assert "points 61 to 80 of 101" in texts(browser, "#inspector dd")
    assert texts(browser, "#map rect.on") == [""]
    hover(browser, "h1")
    assert texts(browser, "#lifetimes .life") == []


def test_hovering_a_tile_shows_its_buffer(show: Show) -> None:
    """Treemap, chart and inspector speak of the same buffer."""
    browser = show(REPORT)
    hover(browser, "#map rect[data-i='3']")
    assert texts(browser, "#inspector h3") == ["jit(step)/long"]
    assert texts(browser, "#inspector li") == ["/a/train.py:7", "/b/run.py:1"]
    assert len(texts(browser, "#lifetimes .life")) == 1


def test_the_keyboard_moves_through_the_table(show: Show) -> None:
    """Arrow keys select a row, a screen reader hears which one, and Escape clears the selection."""
    browser = show(REPORT)
    table = browser.find_element("id", "table")
    table.send_keys("\ue015")  # arrow down
    active = table.get_attribute("aria-activedescendant")
    row = browser.find_element("id", active)
    assert row.get_attribute("aria-selected") == "true"
    assert row.get_attribute("aria-rowindex") == "3"
    assert len(texts(browser, "#lifetimes .life")) == 1
    table.send_keys("\ue00c")  # escape
    assert texts(browser, "#lifetimes .life") == []


def test_filter_and_roles_narrow_the_table(show: Show) -> None:
    """Words must all occur; a role that is switched off is not listed."""
    browser = show(REPORT)
    browser.find_element("id", "filter").send_keys("train.py same")
    assert names(browser) == ["layer_*/same"]
    assert texts(browser, "#count") == ["4 buffers, 256 MiB"]
    browser.find_element("id", "filter").clear()
    browser.find_element("id", "filter").send_keys(" ")
    click(browser, ".chip")
    assert "params['w']" not in names(browser)
    assert len(names(browser)) == 5
