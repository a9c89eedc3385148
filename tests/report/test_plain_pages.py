"""The pages without a script, in a real browser: of many processes, and of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hbmwatch import fold_reports
from hbmwatch._report.curves import curves_page
from hbmwatch._report.markup import markup
from tests.report.pages import GIB, MIB, audit, peak, texts
from tests.report.test_folded import report

FOLDED = fold_reports([report(n, 8, free=30 * MIB if n == 5 else GIB) for n in range(8)])
PAGES = {
    "fold": FOLDED.to_html(),
    "plan": curves_page(
        "Plan for " + "x" * 100, "y" * 300, [("before", peak()), ("after", peak())], 2 * GIB
    ),
}


def shown(browser: Any, tmp_path: Path, page: str, width: int = 1280, **media: Any) -> Any:
    """The browser with one of the pages."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [], **media})
    (tmp_path / "page.html").write_text(PAGES[page], encoding="utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    return browser


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(
    browser: Any, axe: str, tmp_path: Path, page: str, scheme: str
) -> None:
    """axe-core's rules, as for the page of a report."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    assert audit(shown(browser, tmp_path, page, features=features), axe)["violations"] == []
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(16, 18, 21)") == (scheme == "dark")


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_the_whole_page(browser: Any, tmp_path: Path, page: str) -> None:
    """At the phone's own width, where long names break."""
    shown(browser, tmp_path, page, 390)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_what_stands_out_is_marked_without_color(browser: Any, tmp_path: Path) -> None:
    """A process with little free memory has a band of the whole height, on paper, too."""
    shown(browser, tmp_path, "fold", media="print")
    band = "return document.querySelector('.band').getBoundingClientRect()"
    strip = "return document.querySelector('svg').getBoundingClientRect()"
    heights = [browser.execute_script(f"{script}.height") for script in (band, strip)]

    assert heights[0] > 0.9 * heights[1]
    assert texts(browser, "main > p") == [
        "Free memory, process 0 to process 7: 30 MiB to 1.00 GiB. A band from the bottom to the "
        "top marks a process that stands out."
    ]


def test_curves_differ_without_color(browser: Any, tmp_path: Path) -> None:
    """Each has dashes of its own, and the legend has a piece of it."""
    shown(browser, tmp_path, "plan", media="print")
    dashes = "[...document.querySelectorAll('{}')].map((e) => getComputedStyle(e).strokeDasharray)"
    drawn, keys = (
        browser.execute_script(f"return {dashes.format(kind)}") for kind in ("polyline", "li line")
    )

    assert drawn == keys == ["5px, 3px", "none", "1px, 4px"]


HEBREW = "\u05e9\u05dc\u05d5\u05dd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred \u202edesrever", "\ufffd[31mred \ufffddesrever"),
        (f"{HEBREW}.py:7 5 MiB", f'<bdi dir="ltr">{HEBREW}.py:7</bdi> 5 MiB'),
        (f"<{HEBREW}>\n  5 MiB", f'<bdi dir="ltr">&lt;{HEBREW}&gt;</bdi>\n  5 MiB'),
        ("a\ud800", "a\ufffd"),
    ],
)
def test_foreign_text_stays_text_and_in_order(text: str, expected: str) -> None:
    """No markup, no control character, and no name that takes along the figures behind it."""
    assert markup(text) == expected
    page = curves_page(text, text, [(text, peak())], None)
    assert page.count(expected) >= 3
    assert page.encode()
