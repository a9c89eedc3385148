"""Any moment of a program, and groups, in a real browser: figures in the document."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hbmwatch import OomReport, PeakOp
from tests.report.pages import MESSAGE, MIB, REPORT, Show, click, hover, names, op, peak, texts

STACK = ("/a/model.py:9", "/a/train.py:40")
AT_PEAK = (
    op("w", 512, op_name="state['params']['w']", kind="parameter", role="parameters"),
    op("m", 256, op_name="state['mu']['w']", kind="parameter", role="optimizer state"),
    op("block_0/dot", 100, start=20, end=70, shape="f32[8]{0}", source="model.py:9", stack=STACK,
       functions=("attend", "main")),
    op("block_1/dot", 100, start=30, end=60, shape="f32[8]{0}", source="model.py:9", stack=STACK,
       functions=("attend", "main")),
    PeakOp("", size_bytes=MIB),
)  # fmt: skip
LATER = (
    op("update", 200, start=80, end=90, source="train.py:50", stack=("/a/train.py:50",),
       functions=("main",), role="gradients"),
)  # fmt: skip


def report() -> OomReport:
    """A report whose heap has what its buffers have, and 1 MiB of small ones throughout."""
    summary = dataclasses.replace(peak(AT_PEAK), other_ops=LATER)
    heap = [769 * MIB] * len(summary.heap_bytes)
    for held in (*AT_PEAK, *LATER):
        if held.start is not None and held.end is not None:
            for point in range(held.start + 1, held.end + 1):
                heap[point] += held.size_bytes
    heap_bytes = type(summary.heap_bytes)(len(heap), dtype=summary.heap_bytes.dtype)
    heap_bytes[:] = heap
    position = max(range(len(heap)), key=heap.__getitem__)
    total = heap[position]
    summary = dataclasses.replace(
        summary, heap_bytes=heap_bytes, peak_position=position, peak_bytes=total
    )
    return OomReport(dataclasses.replace(MESSAGE, used_bytes=total), summary, findings=FINDINGS)


FINDINGS = (dataclasses.replace(REPORT.findings[0], buffers=("block_0/dot", "block_1/dot")),)


def labels(browser: Any, selector: str) -> list[str]:
    """What a screen reader hears of elements."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.ariaLabel)"
    heard: list[str] = browser.execute_script(script, selector)
    return heard


def state(browser: Any) -> dict[str, Any]:
    """What chart, map and table say of the moment."""
    return {
        "heading": texts(browser, "#h-buffers"),
        "count": texts(browser, "#count"),
        "map": [label.rpartition(",")[0] for label in labels(browser, "#map .header")],
        "rows": names(browser),
        "address": browser.execute_script("return location.hash"),
    }


AT_THE_PEAK = {
    "heading": ["Buffers at the peak"],
    "count": ["5 buffers, 969 MiB"],
    "map": [
        "group parameters: 512 MiB",
        "group optimizer state: 256 MiB",
        "group other temporaries: 200 MiB",
    ],
    "rows": [
        "state['params']['w']",
        "state['mu']['w']",
        "block_*/dot",
        "buffers smaller than 16 KiB, combined",
    ],
    "address": "",
}
AFTER_IT = {
    "heading": ["Buffers at point 86"],
    "count": ["3 buffers and the rest, 969 MiB"],
    "map": [
        "group parameters: 512 MiB",
        "group optimizer state: 256 MiB",
        "group gradients: 200 MiB",
    ],
    "rows": [
        "state['params']['w']",
        "state['mu']['w']",
        "update",
        "buffers smaller than 16 KiB, combined",
    ],
    "address": "#at=86",
}


def click_at(browser: Any, share: float) -> None:
    """Click into the chart, at a share of the program."""
    from selenium.webdriver import ActionChains  # not at the top: pages need no browser

    plot = browser.find_element("id", "chart")
    left, width, whole = browser.execute_script(
        "const b = document.querySelector('#areas').getBBox();"
        "return [b.x, b.width, document.getElementById('chart').clientWidth]"
    )
    ActionChains(browser).move_to_element_with_offset(
        plot, int(left + share * width - whole / 2), 0
    ).click().perform()


def test_the_peak_comes_first_and_a_click_shows_any_moment(show: Show) -> None:
    """Map, table, heading and address follow the moment, and a button goes back to the peak."""
    browser = show(report())
    assert state(browser) == AT_THE_PEAK
    assert texts(browser, "#gray") == ["Gray: buffers smaller than 16 KiB, 1 MiB at this point."]
    click_at(browser, 86.5 / 101)
    assert state(browser) == AFTER_IT
    assert texts(browser, "#marks text") == ["limit 2.00 GiB", "peak 969 MiB", "point 86: 969 MiB"]
    assert texts(browser, "#gray") == ["Gray: buffers smaller than 16 KiB, 1 MiB at this point."]
    click(browser, "#back")
    assert state(browser) == AT_THE_PEAK


def test_without_all_buffers_the_rest_is_said_to_be_unlisted(show: Show) -> None:
    """A report of an older version lists what is at the peak: of other moments it shows a part."""
    whole = report()
    assert whole.summary is not None
    older = dataclasses.replace(whole, summary=dataclasses.replace(whole.summary, other_ops=None))
    browser = show(older, address="#at=86")
    assert names(browser)[2:] == ["buffers that are not listed, combined"]
    expected = "Gray: buffers smaller than 16 KiB, or not listed here, 201 MiB at this point."
    assert texts(browser, "#gray") == [expected]


# Grouping -> the buttons of its groups, and the groups of the map at the peak.
GROUPS = {
    "line": ["no source line 768 MiB", "model.py:9 200 MiB", "train.py:50 0 B",
             "small buffers 1 MiB"],
    "function": ["arguments of the call 768 MiB", "main train.py:40 200 MiB",
                 "main train.py:50 0 B", "small buffers 1 MiB"],
    "path": ["state 768 MiB", "not an argument 200 MiB", "small buffers 1 MiB"],
    "shape": ["no shape 768 MiB", "f32[8] 200 MiB", "small buffers 1 MiB"],
    "layer": ["state['params'] 512 MiB", "state['mu'] 256 MiB", "block_* 200 MiB",
              "not in a named block 0 B", "small buffers 1 MiB"],
}  # fmt: skip


@pytest.mark.slow
def test_one_control_groups_map_chart_and_table(show: Show) -> None:
    """Each grouping has its groups as buttons and bands, and the address keeps it."""
    browser = show(report())
    for grouping, expected in GROUPS.items():
        browser.find_element("css selector", f"#by option[value={grouping}]").click()
        chips = [
            f"{word} {size}"
            for word, size in zip(
                texts(browser, ".chip .word"), texts(browser, ".chip .number"), strict=True
            )
        ]
        assert chips == expected, grouping
        assert browser.execute_script("return location.hash") == f"#by={grouping}"
        bands = browser.execute_script("return document.querySelectorAll('#areas .area').length")
        assert bands == len(expected) - 1, grouping  # the small buffers are the gray area


def test_the_flame_graph_has_callers_above_and_zooms(show: Show) -> None:
    """Frames are as wide as the bytes below them; a click zooms, and Escape goes back."""
    browser = show(report(), address="#by=function&find=block")
    assert texts(browser, "#inspector .badge") == ["main train.py:40"]
    assert texts(browser, "#inspector dd")[-1] == "other temporaries"
    browser = show(report(), address="#by=function")
    assert labels(browser, "#map g")[:3] == [
        "all: 969 MiB, 100.0%, level 0",
        "arguments of the call: 768 MiB, 79.3%, level 1",
        "/a/train.py:40, in main: 200 MiB, 20.6%, level 1",
    ]
    frame = "[...document.querySelectorAll('#map g')].find((g) => "
    frame += "g.getAttribute('aria-label').startsWith('/a/model.py:9, in attend'))"
    wide = f"return {frame}.firstChild.width.baseVal.value"
    before = browser.execute_script(wide)
    browser.execute_script(f"{frame}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert browser.execute_script(wide) == pytest.approx(before * 969 / 200, rel=0.01)
    assert texts(browser, "#way") == ["all \u203a main train.py:40 \u203a attend model.py:9"]
    assert texts(browser, "#count") == ["2 buffers, 200 MiB"]
    browser.find_element("id", "map").send_keys("\ue00c" * 2)
    assert texts(browser, "#way") == [""]


def test_a_link_shows_the_view(show: Show) -> None:
    """Moment, grouping, group, words, order and folding are read from the address."""
    address = "#at=45&by=layer&sort=%2Border&find=dot&each=1&in=block_*"
    browser = show(report(), address=address)
    assert names(browser) == ["block_0/dot", "block_1/dot"]
    assert texts(browser, "#h-buffers, #way, #count") == [
        "all \u203a block_*",
        "Buffers at point 45",
        "2 buffers, 200 MiB",
    ]
    assert browser.execute_script("return location.hash") == address
    browser.execute_script("location.hash = '#at=86'")
    browser.execute_async_script("setTimeout(arguments[0])")
    assert state(browser) == AFTER_IT


def test_a_finding_marks_its_buffers(show: Show) -> None:
    """While it is pointed at, chart, map and table mark the buffers that it frees; the button
    keeps them marked until Escape."""
    browser = show(report())
    hover(browser, ".findings li")
    marked = ("#lifetimes .life", "#map rect.on", "#table tr.found")
    assert [len(texts(browser, kind)) for kind in marked] == [1, 2, 1]
    assert texts(browser, "#table tr.found td.c-name") == ["block_*/dot"]
    hover(browser, "h1")
    assert [len(texts(browser, kind)) for kind in marked] == [0, 0, 0]
    click(browser, ".marks")
    hover(browser, "h1")
    assert [len(texts(browser, kind)) for kind in marked] == [1, 2, 1]
    browser.find_element("tag name", "body").send_keys("\ue00c")
    assert [len(texts(browser, kind)) for kind in marked] == [0, 0, 0]


def test_a_clicked_tiles_row_scrolls_into_view(show: Show) -> None:
    """The row of the smallest buffer is out of sight until its tile is clicked."""
    ops = tuple(op(f"op{n}", 200 - n) for n in range(120))
    browser = show(OomReport(MESSAGE, peak(ops)))
    assert "op119" not in names(browser)
    browser.execute_script(
        "document.querySelector('#map rect[data-i=\"119\"]')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    inside = browser.execute_script(
        "const row = document.querySelector('#table tr.active').getBoundingClientRect();"
        "const box = document.getElementById('scroll').getBoundingClientRect();"
        "return row.top >= box.top && row.bottom <= box.bottom + 1"
    )
    assert texts(browser, "#table tr.active td.c-name") == ["op119"]
    assert inside


def test_the_table_is_copied_as_text_and_as_csv(show: Show) -> None:
    """What the table shows is on the clipboard, sizes for people or in bytes."""
    browser = show(report(), address="#find=block")
    copied = "const done = arguments[0]; navigator.clipboard.readText().then(done)"
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", grant)
    click(browser, "#copy-text")
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    text = browser.execute_async_script(copied).splitlines()
    assert text[0].endswith("at point 31, the peak: 200 MiB")
    row = "200 MiB  2 x 100 MiB  other temporaries  block_*/dot  f32[8]  model.py:9"
    assert text[1:] == [row]
    click(browser, "#copy-csv")
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    assert browser.execute_async_script(copied).splitlines()[1:] == [
        "209715200,2,other temporaries,block_*/dot,f32[8],model.py:9,0,21,70"
    ]
    assert texts(browser, "#copied") == ["1 row copied"]


@pytest.mark.parametrize("longest", ["parameters or optimizer state", "other temporaries"])
def test_every_word_of_a_column_is_read_in_full(show: Show, longest: str) -> None:
    """Roles, shapes and lines of usual length are not cut, nor are the words for small buffers."""
    ops = (
        op("a", 64, role=longest, source="transformer.py:1234",
           shape="bf16[16,2048,16,128]{3,2,1,0}"),
        op("b", 32, role="gradients"),
        PeakOp("", size_bytes=3000),
    )  # fmt: skip
    browser = show(OomReport(MESSAGE, peak(ops)))
    cut = browser.execute_script(
        "return [...document.querySelectorAll('#table th, #table td')].filter((e) =>"
        "!e.matches('.gap td') && getComputedStyle(e).overflowX !== 'visible' &&"
        "e.scrollWidth > e.clientWidth).map((e) => e.textContent)"
    )
    assert cut == []
    assert texts(browser, "#table .bare .c-name")[-1] == "buffers smaller than 16 KiB, combined"
