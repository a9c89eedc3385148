"""The page of a comparison, in a real browser."""

from __future__ import annotations

import dataclasses
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch import OomMessage, OomReport, PeakOp
from hbmwatch._report.comparison import Comparison
from hbmwatch._report.diff_html import diff_page
from hbmwatch._report.diff_text import diff_text
from tests.report.pages import GIB, MIB, REPORT, audit, op, peak, texts, wait

BEFORE = REPORT
OPS: tuple[PeakOp, ...] = (
    op("w", 512, op_name="params['w']", kind="parameter", role="parameters"),
    op("late", 1536, source="train.py:9", shape="f32[24]"),
    op("new", 64, source="train.py:11", functions=("layer",)),
    PeakOp("", size_bytes=3000),
)
AFTER = OomReport(
    BEFORE.message, dataclasses.replace(peak(OPS, points=51), aliased_bytes=256 * MIB)
)
COMPARISON = Comparison(BEFORE, AFTER, 2 * GIB, " (a chip)")
ARROW_RIGHT, END, HOME = "\ue014", "\ue010", "\ue011"


def shown(browser: Any, tmp_path: Path) -> Any:
    """The browser with the page."""
    (tmp_path / "diff.html").write_text(diff_page(COMPARISON, "a.json", "b.json"), encoding="utf-8")
    browser.get((tmp_path / "diff.html").as_uri())
    return browser


def test_the_page_tells_what_changed(browser: Any, tmp_path: Path) -> None:
    """The verdict, one account, two curves and the limit, the groups, the findings; all by keys."""
    shown(browser, tmp_path)
    assert texts(browser, "h1, .verdict") == [
        "Memory of jit_step: 2.13\xa0GiB \N{RIGHTWARDS ARROW} 2.06\xa0GiB (-64\xa0MiB)",
        COMPARISON.verdict(),
    ]
    assert texts(browser, "header tr > *") == [
        *("memory", "before", "after", "change"),
        *("arguments", "768 MiB", "512 MiB", "-256 MiB"),
        *("reused by outputs (donated)", "0 B", "256 MiB", "+256 MiB"),
        *("temporaries", "1.38 GiB", "1.56 GiB", "+192 MiB"),
        *("small buffers", "2.9 KiB", "2.9 KiB", ""),
        *("total", "2.13 GiB", "2.06 GiB", "-64 MiB"),
    ]
    assert texts(browser, ".sides li") == [
        "before: a.json, jit_step, peak 2.13 GiB",
        "after: b.json, jit_step, peak 2.06 GiB",
    ]
    assert len(texts(browser, "#chart .curve")) == 2
    assert texts(browser, "#chart .limit-text") == ["limit 2.00 GiB"]
    assert "end, 101 and 51 points" in texts(browser, "#chart text")
    assert texts(browser, "h3, h3 + ul li")[0] == "Gone"

    chart = browser.find_element("id", "chart")
    wait(browser).until(lambda _: chart.is_displayed())  # it is drawn again when it has its size
    chart.send_keys(END)
    assert texts(browser, "#reading") == ["100% of the program, before 0 B, after 0 B, +0 B"]
    chart.send_keys(HOME + ARROW_RIGHT * 50)
    assert (
        chart.get_attribute("aria-valuetext")
        == texts(browser, "#reading")[0]
        == ("50% of the program, before 2.13 GiB, after 2.06 GiB, -64 MiB")
    )

    rows = texts(browser, "#groups tbody th")
    assert rows[:2] == [
        "late" + "temporary, train.py:9" + " to f32[24]",
        "opt_state.mu['w']argumentgone",
    ]
    grouping = browser.find_element("id", "by")
    grouping.send_keys("function")
    assert texts(browser, "#groups thead th")[1] == "function"
    assert texts(browser, "#groups tbody th") == ["no function", "layernew"]
    assert browser.execute_script("return location.hash") == "#by=function"
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_link_shows_a_grouping_and_the_command_chooses_the_first(
    browser: Any, tmp_path: Path
) -> None:
    """As on the page of a report, the address holds what differs from the view at the start."""
    file = tmp_path / "diff.html"
    file.write_text(diff_page(COMPARISON, "a", "b", "layer"), encoding="utf-8")
    shown = []
    for address in ("", "#by=shape", "#by=none"):
        browser.get("about:blank")
        browser.get(file.as_uri() + address)
        shown.append(texts(browser, "#groups thead th")[1])
    browser.execute_script("location.hash = 'by=role'")
    wait(browser).until(lambda b: texts(b, "#groups thead th")[1] == "role")

    assert shown == ["layer", "shape", "layer"]
    assert browser.find_element("id", "by").get_attribute("value") == "role"


def test_the_curves_are_drawn_for_paper(browser: Any, tmp_path: Path) -> None:
    """At the width of A4, in black, one with dashes, and with all rows of the table."""
    shown(browser, tmp_path)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    paper = browser.execute_script(
        "return document.querySelector('#chart svg').viewBox.baseVal.width"
    )
    styles = browser.execute_script(
        "return [...document.querySelectorAll('#chart .curve')].map((e) => getComputedStyle(e))"
        ".map((style) => [style.stroke, style.strokeDasharray])"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_script("dispatchEvent(new Event('afterprint'))")

    assert (paper, styles) == (660, [["rgb(0, 0, 0)", "5px, 3px"], ["rgb(0, 0, 0)", "none"]])
    assert browser.execute_script("return document.getElementById('chart').style.width") == ""


@pytest.mark.parametrize("width", [390, 640, 1280])
def test_nothing_is_wider_than_the_window(browser: Any, tmp_path: Path, width: int) -> None:
    """Long names break; on a phone, a name is as wide as what is below it."""
    long = op("x" * 200, 3072, source=f"{'y' * 60}.py:12", functions=("z" * 100,))
    after = OomReport(OomMessage(""), peak((*OPS, long)))
    page = diff_page(Comparison(BEFORE, after, 2 * GIB), "a" * 100, "b")
    (tmp_path / "long.html").write_text(page, encoding="utf-8")
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get((tmp_path / "long.html").as_uri())
    boxes = "document.documentElement, ...document.querySelectorAll('.wide')"
    wide = f"[{boxes}].some((e) => e.scrollWidth > e.clientWidth)"
    name = "document.querySelector('#groups tbody th').getBoundingClientRect().width"
    is_wider, name_width = browser.execute_script(f"return [{wide}, {name}]")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    assert not is_wider
    assert name_width > 0.4 * width


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, axe: str, tmp_path: Path, scheme: str) -> None:
    """axe-core's rules for WCAG 2.2 A and AA, and its best practices, hold in both schemes."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    found = audit(shown(browser, tmp_path), axe)

    assert found["violations"] == []
    assert found["passes"] > 25


def test_a_name_is_no_markup() -> None:
    """Whatever the buffers and files are called."""
    evil = "</script><script>alert(1)</script>"
    report = OomReport(OomMessage(""), peak((op(evil, 8, source=evil, shape=evil),)))
    page = diff_page(Comparison(report, AFTER), evil, evil)

    assert "alert(1)</script>" not in page


def test_without_a_script_the_page_shows_the_text() -> None:
    """As the command prints it, in a pipe."""
    assert f"<noscript><pre>{escape(diff_text(COMPARISON))}</pre>" in diff_page(
        COMPARISON, "a", "b"
    )


def test_a_curve_of_many_points_keeps_its_peak() -> None:
    """The page of a long program is small, and shows its highest point."""
    assert AFTER.summary is not None
    heap = np.arange(100_000, dtype=np.int64)[::-1]
    long = OomReport(OomMessage(""), dataclasses.replace(AFTER.summary, heap_bytes=heap))
    page = diff_page(Comparison(AFTER, long), "a", "b")

    assert len(page) < 150_000
    assert '"heap":[99999,' in page and '"points":100000' in page


def test_the_page_says_why_findings_are_not_compared(browser: Any, tmp_path: Path) -> None:
    """Of a program that did not fail, fewer findings are looked for."""
    fitting = Comparison(BEFORE, dataclasses.replace(AFTER, message=OomMessage("")))
    file = tmp_path / "diff.html"
    file.write_text(diff_page(fitting, "a.json", "b.json"), encoding="utf-8")
    browser.get(file.as_uri())

    sentence = fitting.why_no_findings()
    assert sentence.startswith("The findings cannot be compared: the second is not of a failure")
    assert sentence in texts(browser, "h2 + p")


def test_a_narrow_phone_shows_the_account_whole(browser: Any, tmp_path: Path) -> None:
    """Each figure is in sight, and no word of the account is broken."""
    metrics = {"width": 320, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    shown(browser, tmp_path)
    hidden = "[...document.querySelectorAll('.wide')].map((e) => e.scrollWidth - e.clientWidth)"
    heights = "[...document.querySelectorAll('.account tbody th')].map((e) => e.offsetHeight < 40)"

    assert browser.execute_script(f"return {hidden}") == [0, 0]
    assert all(browser.execute_script(f"return {heights}"))
