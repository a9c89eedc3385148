"""The page in a notebook's cell."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from hbmwatch import OomReport
from tests.report.pages import MESSAGE, REPORT, names, op, peak, texts, wait


def open_in_a_frame(browser: Any, tmp_path: Path, cell: str) -> None:
    """Open a notebook with one cell, and look into its sandboxed frame."""
    document = f"<!doctype html><title>notebook</title><body>{cell}</body>"
    (tmp_path / "notebook.html").write_text(document, encoding="utf-8")
    browser.get((tmp_path / "notebook.html").as_uri())
    frame = browser.find_element("tag name", "iframe")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    browser.switch_to.frame(frame)


def test_a_notebook_shows_it_in_a_frame_of_its_own(browser: Any, tmp_path: Path) -> None:
    """_repr_html_ is one sandboxed frame, so that page and notebook leave each other alone."""
    open_in_a_frame(browser, tmp_path, REPORT._repr_html_())
    assert len(names(browser)) == 6
    assert texts(browser, "#h-buffers, #h-buffers + p") == ["Buffers at the peak", ""]
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []


def test_a_notebook_gets_the_largest_buffers_only(browser: Any, tmp_path: Path) -> None:
    """A cell's output stays small: 2,000 buffers at most, and it says so."""
    ops = tuple(op(f"op{n}", 1 + n) for n in range(3000))
    html = OomReport(MESSAGE, peak(ops))._repr_html_()
    assert "op2999" in html and "op999&quot;" not in html
    open_in_a_frame(browser, tmp_path, html)
    assert texts(browser, "#h-buffers + p") == ["the 2,000 largest of 3,000 at the peak"]
    assert texts(browser, "#count") == ["2,000 buffers and the rest, 4.29 TiB"]
    browser.switch_to.default_content()


HEIGHTS = "return [innerHeight, Math.ceil(document.body.getBoundingClientRect().height)]"


def test_the_frame_fits_its_content(browser: Any, tmp_path: Path) -> None:
    """Two reports in a notebook, each with its own height; the text below is hidden."""
    many = tuple(op(f"layer/op{n}", 1 + n, source=f"train.py:{n}") for n in range(40))
    cells = REPORT._repr_html_() + OomReport(MESSAGE, peak(many))._repr_html_()
    open_in_a_frame(browser, tmp_path, cells)
    browser.switch_to.default_content()
    frames = browser.find_elements("css selector", "iframe.hbmwatch")
    heights = []
    for frame in frames:
        browser.execute_script("arguments[0].scrollIntoView()", frame)
        browser.switch_to.frame(frame)
        wait(browser).until(lambda shown: len(set(shown.execute_script(HEIGHTS))) == 1)
        heights.append(browser.execute_script("return innerHeight"))
        browser.switch_to.default_content()

    assert len(set(heights)) == 2
    shown = [text.is_displayed() for text in browser.find_elements("css selector", "iframe + div")]
    assert shown == [False, False]
    assert browser.get_log("browser") == []


def test_a_frame_of_another_origin_around_the_cell_is_no_hindrance(
    browser: Any, tmp_path: Path
) -> None:
    """Colab and VS Code put a cell's output into a frame, which knows nothing of the notebook."""
    outer = escape(f"<!doctype html><body>{REPORT._repr_html_()}</body>", quote=True)
    (tmp_path / "notebook.html").write_text(
        f'<!doctype html><title>notebook</title><iframe sandbox="allow-scripts" '
        f'style="width:900px;height:700px" srcdoc="{outer}"></iframe>',
        encoding="utf-8",
    )
    browser.get((tmp_path / "notebook.html").as_uri())
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    frame = browser.find_element("css selector", "iframe.hbmwatch")
    text = browser.find_element("css selector", "iframe + div")
    wait(browser).until(lambda _: not text.is_displayed())
    height = frame.size["height"]
    browser.switch_to.frame(frame)
    found = (len(names(browser)), browser.execute_script(HEIGHTS))
    browser.switch_to.default_content()

    assert found == (6, [height, height])
    assert browser.get_log("browser") == []


def test_where_no_script_runs_the_text_and_a_picture_are_shown(
    browser: Any, tmp_path: Path
) -> None:
    """As in a notebook that is not trusted."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        document = f"<!doctype html><title>notebook</title><body>{REPORT._repr_html_()}</body>"
        (tmp_path / "notebook.html").write_text(document, encoding="utf-8")
        browser.get((tmp_path / "notebook.html").as_uri())
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    (text,) = browser.find_elements("css selector", "iframe + div pre")
    (picture,) = browser.find_elements("css selector", "iframe + div img")

    assert text.is_displayed() and text.text == str(REPORT)
    assert picture.get_attribute("alt") == (
        "Memory curve of the program: peak 2.13 GiB, limit 2.00 GiB"
    )
    assert picture.get_property("naturalWidth") == 900
