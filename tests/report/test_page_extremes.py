"""The page of a report that is damaged or far larger than real ones, in a real browser."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch import DeviceMemory, Finding, LiveArrays, OomMessage, OomReport
from tests.report.pages import MIB, OPS, REPORT, Show, op, peak, texts, wait

LONG = "x" * 10_000
MANY = 130_000
HEBREW, ARABIC = "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627"
WIDE = "return document.documentElement.scrollWidth - innerWidth"


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1280])
def test_long_names_break(show: Show, width: int) -> None:
    """No name makes the page wider than the window, wherever it stands."""
    report = dataclasses.replace(
        REPORT,
        summary=peak((op(LONG, 64, op_name=LONG, source=LONG, shape=LONG, role=LONG), *OPS)),
        device=DeviceMemory(LONG, 1, live=(LiveArrays((1,) * 500, LONG, 1, 1),), deleted=(LONG,)),
        findings=(Finding(LONG, LONG, LONG, LONG, 1, "hint", LONG, LONG, LONG),),
        rollup={"path": {LONG: 1}},
        verdict=LONG,
        notes=(LONG,),
        missing=(LONG,),
        logdir=LONG,
        versions={LONG: LONG},
    )
    browser = show(report)
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    assert browser.execute_script(WIDE) <= 0


def test_a_phone_shows_the_small_buffers_whole(show: Show) -> None:
    """The row of all small buffers has words of ours, which no width cuts."""
    browser = show(REPORT)
    metrics = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    room = "const e = document.querySelector('tr.bare .c-name'); return [e.scrollWidth "
    room += "- e.clientWidth, e.scrollHeight - e.clientHeight].map((n) => n > 1)"

    assert browser.execute_script(room) == [False, False]


@pytest.mark.slow
def test_very_many_notes_and_findings_are_shown(show: Show) -> None:
    """More than a call in JavaScript can have arguments."""
    many = dataclasses.replace(
        REPORT, notes=("a note",) * MANY, findings=REPORT.findings * 1000, summary=None
    )
    browser = show(many)

    assert browser.execute_script("return document.querySelectorAll('#notes li').length") == MANY
    assert len(texts(browser, ".findings > li")) == 1000


@pytest.mark.slow
def test_very_many_buffers_are_shown_at_each_moment(show: Show) -> None:
    """Also where most of the memory is of buffers that are not listed."""
    ops = tuple(op(f"x{n}", 1, start=2, end=90) for n in range(MANY))
    summary = dataclasses.replace(
        peak(ops), heap_bytes=np.full(101, 2**40), peak_position=50, other_ops=()
    )
    browser = show(dataclasses.replace(REPORT, summary=summary), address="#at=60")

    assert texts(browser, "#count") == ["130,000 buffers and the rest, 1.00 TiB"]


def test_figures_stay_in_order_after_words_from_right_to_left(show: Show) -> None:
    """A name in Hebrew or Arabic does not take the size behind it to its other side."""
    report = dataclasses.replace(REPORT, notes=(f"{HEBREW}/{ARABIC} 5 MiB",), findings=())
    show_script = """
    const item = document.querySelector("#notes li");
    item.normalize();
    const range = document.createRange();
    const text = item.lastChild;
    const places = ["5", "M"].map((letter) => {
      range.setStart(text, text.data.indexOf(letter));
      range.setEnd(text, text.data.indexOf(letter) + 1);
      return range.getBoundingClientRect().left;
    });
    return [item.querySelector("bdi").getBoundingClientRect().left, ...places];
    """
    places = show(report).execute_script(show_script)

    assert places == sorted(places)


def test_a_page_that_cannot_be_drawn_shows_its_text(browser: Any, tmp_path: Path) -> None:
    """Whatever is wrong with the data: an empty page would help nobody."""
    file = tmp_path / "report.html"
    file.write_text(REPORT.to_html().replace('"notes":["a note"]', '"notes":null'))
    browser.get(file.as_uri())
    wait(browser).until(lambda _: texts(browser, "#report pre"))
    (shown,) = texts(browser, "#report pre")
    (logged,) = browser.get_log("browser")

    assert shown == str(REPORT)
    assert "TypeError" in logged["message"]


def test_sizes_beyond_all_units_have_all_digits(show: Show) -> None:
    """As in the text: a number of 60 digits has no exponent."""
    message = OomMessage("x", "tpu", "compile", used_bytes=10**60, limit_bytes=5 * MIB)
    browser = show(OomReport(message, peak()))

    assert [text for text in texts(browser, "main *") if "e+" in text] == []
