"""The page on paper: A4, in black and white."""

from __future__ import annotations

import base64

from tests.report.pages import A4, REPORT, Show, texts


def test_a4_has_lines_and_roles_in_black_and_white(show: Show) -> None:
    """Paper gets a table of its own, not the phone's; names and outlines stand for the colors."""
    browser = show(REPORT)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    screen = {"width": 700, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    heads = browser.execute_script(
        "return [...document.querySelectorAll('#table th')].filter((e) => e.offsetWidth)"
        ".map((e) => e.textContent)"
    )
    assert heads == ["Size", "Count", "Role", "Name", "Shape", "Source line"]
    wide = "return [document.getElementById('table').offsetWidth, document.body.scrollWidth]"
    assert max(browser.execute_script(wide)) <= 700
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

    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.getElementById('explorer').style.width") == ""


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
