"""What is on the page, in a real browser: figures, sections, the table, and what is left out."""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomMessage, OomReport, PeakOp
from hbmwatch._records.roles import ROLES, role_of
from tests.report.pages import MESSAGE, OPS, PEAK, POINTS, REPORT, Show, names, op, peak, texts


@pytest.mark.parametrize(
    ("op", "role"),
    [
        (PeakOp("", size_bytes=3000), "small buffers"),
        (op("x", 1, role="gradients"), "gradients"),
        (op("x", 1, kind="output"), "outputs"),
        (op("x", 1, kind="constant"), "constants"),
        (op("x", 1, kind="parameter", op_name="state.params['w']"), "parameters"),
        (op("x", 1, kind="parameter", op_name="opt_state[0].nu['w']"), "optimizer state"),
        (op("x", 1, kind="parameter", op_name="batch['image']"), "arguments"),
        (op("x", 1, opcode="all-gather"), "collectives"),
        (op("transpose(jvp(f))/rematted_computation/dot", 1), "recomputed by jax.checkpoint"),
        (op("transpose(jvp(f))/dot", 1), "backward temporaries"),
        (op("jvp(f)/dot", 1), "forward temporaries"),
        (op("dot", 1), "other temporaries"),
    ],
)
def test_a_role_is_what_was_told_else_what_names_tell(op: PeakOp, role: str) -> None:
    """A profile's buffers have no role of their own; paths and op_names tell some."""
    assert role_of(op) == role
    assert role in ROLES


def test_the_page_shows_the_reports_figures(show: Show) -> None:
    """Title, binding figures, finding, peak, limit, buffers, notes and the text are all there."""
    browser = show(REPORT)
    title = "train_step ran out of HBM while compiling for TPU v5 lite (E1000)"
    assert texts(browser, "h1") == [title]
    assert texts(browser, ".figures div") == [
        "needs per device2.13 GiB",
        "available2.00 GiB",
        "over the limit128 MiB",
    ]
    assert texts(browser, ".findings h3") == ["donate params"]
    assert texts(browser, "#marks text") == ["limit 2.00 GiB", "peak 2.13 GiB"]
    assert texts(browser, "#count") == ["9 buffers, 2.13 GiB"]
    assert texts(browser, "#text pre") == [MESSAGE.text]
    assert texts(browser, "#notes li, #missing li") == ["a note", "the device's memory: not asked"]
    assert texts(browser, ".bars th") == ["params['w']", "3 x float32[8,8]"]
    assert texts(browser, ".key li")[:2] == [
        "parameters 512 MiB 24%",
        "optimizer state 256 MiB 12%",
    ]


def test_the_page_has_the_words_of_the_text(show: Show) -> None:
    """Title, figures, findings and the heads of what both show read the same."""
    browser = show(REPORT)
    text = str(REPORT)
    assert texts(browser, "h2") == [
        "What to try first",
        "Memory over the program",
        "Buffers at the peak",
        "By pytree path",
        "On the device",
        "Notes",
        "Not available",
        "Error message",
    ]
    (title,) = texts(browser, "h1")
    assert text.startswith(f"hbmwatch: {title}\n  needs 2.13 GiB per device; 2.00 GiB available; ")
    assert "\n  What to try first\n    1. donate params (frees up to 512 MiB)\n" in text
    saves = "frees up to 512 MiB128 MiB must be freed: enough by itself"
    assert texts(browser, ".findings .saves") == [saves]
    assert texts(browser, ".verdict") == [REPORT.verdict]
    assert f"\n    {REPORT.verdict}\n" in text
    assert "\n  Largest buffers at the peak\n" in text
    assert "\n  unavailable: the device's memory: not asked\n" in text
    assert "buffers smaller than 16 KiB, combined" in text


def test_the_table_has_every_buffer_equal_ones_folded(show: Show) -> None:
    """A row has sizes, role, name, shape, line, padding and order; four equal layers are one."""
    browser = show(REPORT)
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#table tr[data-id]')]"
        ".map((tr) => [...tr.cells].map((td) => td.textContent))"
    )
    assert rows == [
        ["1.00 GiB", "", "other temporaries", "late", "", "train.py:9", "896 MiB", "", "3"],
        ["512 MiB", "", "parameters", "params['w']", "", "", "\N{EN DASH}", "", "1"],
        ["256 MiB", "", "optimizer state", "opt_state.mu['w']", "", "", "\N{EN DASH}", "", "2"],
        ["256 MiB", "4 \N{MULTIPLICATION SIGN} 64 MiB", "other temporaries", "layer_*/same", "",
         "train.py:5", "\N{EN DASH}", "", "5"],
        ["128 MiB", "", "other temporaries", "long", "", "train.py:7", "\N{EN DASH}", "", "4"],
        ["2.9 KiB", "", "small buffers", "buffers smaller than 16 KiB, combined", "", "",
         "\N{EN DASH}", "", "9"],
    ]  # fmt: skip


def test_without_a_script_the_text_report_is_there(show: Show) -> None:
    """Whoever runs no script reads the same report as text."""
    browser = show(REPORT)
    hidden = browser.execute_script("return document.querySelector('noscript').textContent")
    for line in str(REPORT).splitlines():
        assert html.escape(line) in hidden


def test_without_a_script_the_text_is_the_whole_page(browser: Any, tmp_path: Path) -> None:
    """It does not scroll inside of a page that has nothing else, on a phone, too."""
    REPORT.save_html(tmp_path / "report.html")
    metrics = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((tmp_path / "report.html").as_uri())
        hidden = "[document.querySelector('pre')].map((e) => e.scrollHeight - e.clientHeight)"
        found = {"expression": f"{hidden}[0]", "returnByValue": True}
        result = browser.execute_cdp_cmd("Runtime.evaluate", found)["result"]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert result["value"] == 0


def test_where_nothing_unpacks_the_data_the_text_report_is_there(
    browser: Any, tmp_path: Path
) -> None:
    """A browser from before 2023 shows the text of a report whose data is deflated."""
    large = dataclasses.replace(REPORT, notes=("x" * 20_000,) * 60)
    (tmp_path / "large.html").write_text(large.to_html(), encoding="utf-8")
    without = {"source": "delete window.DecompressionStream"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", without)
    try:
        browser.get((tmp_path / "large.html").as_uri())
        (shown,) = texts(browser, "#report pre")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert shown.splitlines()[:9] == str(large).splitlines()[:9]


@pytest.mark.parametrize(
    ("report", "rows"),
    [
        pytest.param(OomReport(OomMessage("x", "gpu", "run")), 0, id="the message alone"),
        pytest.param(
            OomReport(OomMessage("x", "tpu", "compile", ops=OPS[:2])), 2, id="the message's buffers"
        ),
        pytest.param(OomReport(OomMessage(""), peak()), 6, id="a peak that is no failure"),
        pytest.param(OomReport(MESSAGE, peak(OPS[:1], 3)), 1, id="one buffer"),
    ],
)
def test_what_is_not_known_is_left_out(show: Show, report: OomReport, rows: int) -> None:
    """A page is made of what there is, without an error in the console."""
    browser = show(report)

    assert len(names(browser)) == rows
    assert [text for text in texts(browser, "main *") if re.search(r"\b1 \w+s\b", text)] == []


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(OomReport(OomMessage("x"), peak(OPS[:0], 3)), id="no buffers"),
        pytest.param(OomReport(OomMessage("x"), peak((op("a", 0),))), id="no bytes"),
        pytest.param(
            OomReport(OomMessage("x", used_bytes=5, limit_bytes=0), peak((op("a", 0),))),
            id="no bytes and no memory",
        ),
        pytest.param(
            OomReport(OomMessage("x"), peak((op("a", 1, unpadded_bytes=0),))),
            id="all padding",
        ),
        pytest.param(
            OomReport(OomMessage("x"), dataclasses.replace(peak(), peak_position=POINTS)),
            id="a peak beyond the end",
        ),
        pytest.param(
            OomReport(OomMessage("x"), peak((op("a", 2**40), op("b", 1)))), id="an exbibyte"
        ),
    ],
)
def test_sizes_of_every_magnitude_are_drawn(show: Show, report: OomReport) -> None:
    """Nothing at all, nothing but padding, and an exbibyte: no division by 0, no endless axis."""
    browser = show(report)
    assert [text for text in texts(browser, "main *") if re.search("NaN|Infinity", text)] == []
    odd = "return [...document.querySelectorAll('svg *')].filter((e) => [...e.attributes]"
    assert browser.execute_script(f"{odd}.some((a) => /NaN|Infinity/.test(a.value))).length") == 0
    assert len(texts(browser, "#ticks text")) < 20


def test_the_treemaps_areas_are_the_sizes(show: Show) -> None:
    """Each group's share of the map, its header included, is its share of the peak; each tile's
    share of its group is its buffer's."""
    tiles = show(REPORT).execute_script(
        "return [...document.querySelectorAll('#map rect')].map((r) =>"
        "[r.dataset.group, r.dataset.i ?? '', r.width.baseVal.value * r.height.baseVal.value])"
    )
    groups: dict[str, float] = {}
    for group, _, area in tiles:
        groups[group] = groups.get(group, 0) + area
    whole = sum(groups.values())
    buffers = {int(i): (group, area) for group, i, area in tiles if i}
    for group, area in groups.items():
        inside = {i: tile for i, (own, tile) in buffers.items() if own == group}
        size = sum(OPS[i].size_bytes for i in inside)
        assert area / whole == pytest.approx(size / PEAK, abs=1e-3)
        shares = {i: tile / sum(inside.values()) for i, tile in inside.items()}
        expected = {i: OPS[i].size_bytes / size for i in inside}
        assert shares == pytest.approx(expected, abs=1e-3)
    assert len(buffers) == len(OPS)
