"""The page on paper: A4, in black and white."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hbmwatch import OomReport, PeakOp
from tests.report.pages import A4, MESSAGE, REPORT, Show, op, peak, texts

PAPER = 702  # pixels: A4 without its margins


@pytest.fixture
def on_paper(show: Show) -> Iterator[Callable[..., Any]]:
    """Opens a report as paper of A4 shows it; afterwards the browser is a screen again."""
    opened = []

    def printed(report: OomReport, address: str = "") -> Any:
        browser = show(report, address=address)
        opened.append(browser)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        screen = {"width": PAPER, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        return browser

    yield printed
    for browser in opened:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_script("dispatchEvent(new Event('afterprint'))")


def test_a4_has_lines_and_roles_in_black_and_white(on_paper: Callable[..., Any]) -> None:
    """Paper gets a table of its own, not the phone's; names and outlines stand for the colors."""
    browser = on_paper(REPORT)
    heads = browser.execute_script(
        "return [...document.querySelectorAll('#table th')].filter((e) => e.offsetWidth)"
        ".map((e) => e.textContent)"
    )
    assert heads == ["Size", "Count", "Role", "Name", "Shape", "Source line"]
    wide = "return [document.getElementById('table').offsetWidth, document.body.scrollWidth]"
    assert max(browser.execute_script(wide)) <= PAPER
    assert texts(browser, "#table td.c-source") == ["train.py:9", "", "", "train.py:5",
                                                    "train.py:7", ""]  # fmt: skip
    assert texts(browser, "#labels text") == ["parameters", "optimizer state", "other temporaries"]
    strokes = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('.area, #map rect, .budget rect')]"
        ".map((e) => getComputedStyle(e).stroke))]"
    )
    assert strokes == ["rgb(0, 0, 0)"]
    cut = "return document.getElementById('scroll').scrollHeight > document.getElementById("
    assert not browser.execute_script(f"{cut}'scroll').clientHeight")
    # A browser repeats the headings on each page, but no button that is in one.
    button = "return getComputedStyle(document.querySelector('th .sort')).display"
    assert browser.execute_script(button) == "contents"

    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.getElementById('explorer').style.width") == ""


def test_paper_says_how_the_buffers_are_grouped_and_filtered(on_paper: Callable[..., Any]) -> None:
    """The grouping, the zoom, the filter and the count, as words; no control that needs a click."""
    browser = on_paper(REPORT, "#by=line&in=train.py%3A5&find=layer_1")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.tools > *')].filter((e) => e.offsetWidth)"
        ".map((e) => e.value || (e.querySelector('select')?.selectedOptions[0] ?? e).textContent)"
    )
    assert shown == ["source line", "all \u203a train.py:5", "layer_1", "1 buffer, 64 MiB"]
    before = "return getComputedStyle(document.querySelectorAll('.tools')[1], '::before').content"
    assert browser.execute_script(before) == '"Filter:"'


def test_no_word_is_cut_on_paper(on_paper: Callable[..., Any]) -> None:
    """Sizes, counts and roles of every length fit; names, shapes and lines are wrapped."""
    ops = (
        op("a" * 80, 2**20, role="parameters or optimizer state", shape="bf16[16,2048,16,128,12]"),
        *(op(f"layer_{n}/b", 1023, role="residuals saved for backward") for n in range(128)),
        op("c", 1, source="transformer_normalization.py:1234"),
        PeakOp("", size_bytes=3000),
    )
    browser = on_paper(OomReport(MESSAGE, peak(ops)))
    cut = browser.execute_script(
        "return [...document.querySelectorAll('#table td')].filter((e) => e.offsetWidth &&"
        "!e.matches('.bare .c-name') && e.scrollWidth > e.clientWidth).map((e) => e.textContent)"
    )
    assert cut == []


def test_the_map_is_drawn_as_wide_as_the_paper(show: Show) -> None:
    """A browser tells the page to get ready before the rules for print hold."""
    browser = show(REPORT)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    width = "return document.querySelector('#map svg').viewBox.baseVal.width"
    assert browser.execute_script(width) > 680

    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(f"{width} < document.body.offsetWidth * 0.65")


def test_no_text_on_paper_is_larger_than_the_page_says(show: Show) -> None:
    """Sizes that depend on the text of the whole page are those of paper, too."""
    browser = show(REPORT)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.foot, .findings .saves, .key, footer, .bars')]"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})

    assert sizes and max(sizes) <= 12


def test_a_report_prints_on_a_few_pages(show: Show) -> None:
    """A4, with everything in it."""
    browser = show(REPORT)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", A4)["data"])
    assert 1 <= pdf.count(b"/Type /Page\n") <= 4
