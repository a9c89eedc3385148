"""The page in a real browser: figures, sorting, hovering, keyboard, colours, foreign text."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch import (
    DeviceMemory,
    Finding,
    LiveArrays,
    OomMessage,
    OomReport,
    PeakOp,
    PeakSummary,
)
from hbmwatch._records.roles import ROLES, role_of

webdriver = pytest.importorskip("selenium.webdriver")

MIB, GIB = 2**20, 2**30
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m\u202e"


# --- the browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver (Debian: chromium, chromium-driver) are not here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a report; afterwards the console must be empty and nothing loaded from elsewhere."""

    def opened(report: OomReport, dark: bool = False, phone: bool = False) -> Any:
        screen = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
        metrics = {**screen, "deviceScaleFactor": 1, "mobile": phone}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        report.save_html(tmp_path / "report.html")
        browser.get((tmp_path / "report.html").as_uri())
        return browser

    yield opened
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def _all(browser: Any, selector: str) -> list[str]:
    """The texts of all elements that a selector finds."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    texts: list[str] = browser.execute_script(script, selector)
    return texts


def _names(browser: Any) -> list[str]:
    return _all(browser, "#table td.c-name")


def _click(browser: Any, selector: str) -> None:
    browser.find_element("css selector", selector).click()


def _hover(browser: Any, selector: str) -> None:
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    webdriver.ActionChains(browser).move_to_element(element).perform()


# --- the reports ----------------------------------------------------------------------------------


def _op(name: str, mib: int, **more: Any) -> PeakOp:
    known = {"opcode": "fusion", "op_name": f"jit(step)/{name}", "kind": "temporary"}
    size = {"size_bytes": mib * MIB, "unpadded_bytes": mib * MIB}
    return PeakOp(**{"instruction": name, **known, **size, **more})


OPS = (
    _op("w", 512, op_name="params['w']", kind="parameter", role="parameters"),
    _op("m", 256, op_name="opt_state.mu['w']", kind="parameter", role="optimizer state"),
    _op("late", 1024, unpadded_bytes=128 * MIB, start=60, end=80, source="train.py:9"),
    _op("long", 128, start=5, end=90, source="train.py:7", stack=("/a/train.py:7", "/b/run.py:1")),
    *[_op(f"layer_{n}/same", 64, start=10 + n, end=70, source="train.py:5") for n in range(4)],
    PeakOp("", size_bytes=3000),
)
PEAK = sum(op.size_bytes for op in OPS)
POINTS = 101


def _summary(ops: tuple[PeakOp, ...] = OPS, points: int = POINTS) -> PeakSummary:
    """A peak in the middle of a program, of the buffers' sizes."""
    total = sum(op.size_bytes for op in ops)
    rising = np.linspace(0, 1, points // 2 + 1)
    heap = (np.concatenate([rising, rising[-2::-1]]) * total).astype(np.int64)
    middle = int(heap.argmax())
    return PeakSummary(
        "jit_step", 3, "hbm", total, total, middle, heap, 0, 0, 0, total, total, 0, ops
    )


MESSAGE = OomMessage(
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM",
    "tpu",
    "compile",
    code="E1000",
    memory_space="hbm",
    used_bytes=PEAK,
    limit_bytes=2 * GIB,
)
REPORT = OomReport(
    MESSAGE,
    _summary(),
    DeviceMemory("TPU v5 lite", 4, live=(LiveArrays((8, 8), "float32", 3, 5 * MIB),)),
    rollup={"path": {"params['w']": 512 * MIB}},
    findings=(
        Finding(
            "donation",
            "donate params",
            "kept twice",
            "Pass donate_argnums=0.",
            512 * MIB,
            "derived",
            "https://docs.jax.dev/en/latest/buffer_donation.html",
            "a smaller batch",
        ),
    ),
    notes=("a note",),
    missing=("the device's memory: not asked",),
    logdir="/tmp/xprof",
    function="train_step",
    versions={"jax": "0.10.2"},
)


@pytest.mark.parametrize(
    ("op", "role"),
    [
        (PeakOp("", size_bytes=3000), "small buffers"),
        (_op("x", 1, role="gradients"), "gradients"),
        (_op("x", 1, kind="output"), "outputs"),
        (_op("x", 1, kind="constant"), "constants"),
        (_op("x", 1, kind="parameter", op_name="state.params['w']"), "parameters"),
        (_op("x", 1, kind="parameter", op_name="opt_state[0].nu['w']"), "optimizer state"),
        (_op("x", 1, kind="parameter", op_name="batch['image']"), "arguments"),
        (_op("x", 1, opcode="all-gather"), "collectives"),
        (_op("transpose(jvp(f))/rematted_computation/dot", 1), "recomputed by jax.checkpoint"),
        (_op("transpose(jvp(f))/dot", 1), "backward temporaries"),
        (_op("jvp(f)/dot", 1), "forward temporaries"),
        (_op("dot", 1), "other temporaries"),
    ],
)
def test_a_role_is_what_was_told_else_what_names_tell(op: PeakOp, role: str) -> None:
    """A profile's buffers have no role of their own; paths and op_names tell some."""
    assert role_of(op) == role
    assert role in ROLES


# --- what is on it --------------------------------------------------------------------------------


def test_the_page_shows_the_reports_figures(show: Show) -> None:
    """Title, binding figures, finding, peak, limit, buffers, notes and the text are all there."""
    browser = show(REPORT)
    title = "train_step ran out of HBM while compiling for TPU v5 lite (E1000)"
    assert _all(browser, "h1") == [title]
    assert _all(browser, ".figures div") == ["needs per device2.13 GiB", "available2.00 GiB", "over the limit128 MiB"]
    assert _all(browser, ".findings h3") == ["donate params"]
    assert _all(browser, "#marks text") == ["limit 2.00 GiB", "peak 2.13 GiB"]
    assert _all(browser, "#count") == ["9 buffers, 2.13 GiB"]
    assert _all(browser, "#text pre") == [MESSAGE.text]
    assert _all(browser, "#notes li, #missing li") == ["a note", "the device's memory: not asked"]
    assert _all(browser, ".bars th") == ["params['w']", "3 x float32[8,8]"]
    assert _all(browser, ".key li")[:2] == [
        "parameters 512 MiB 24 %",
        "optimizer state 256 MiB 12 %",
    ]


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
        ["2.9 KiB", "", "small buffers", "all buffers below 16 KiB", "", "",
         "\N{EN DASH}", "", "9"],
    ]  # fmt: skip


def test_without_a_script_the_text_report_is_there(show: Show) -> None:
    """Whoever runs no script reads the same report as text."""
    browser = show(REPORT)
    hidden = browser.execute_script("return document.querySelector('noscript').textContent")
    for line in str(REPORT).splitlines():
        assert line.replace("'", "&#x27;") in hidden


@pytest.mark.parametrize(
    ("report", "rows"),
    [
        pytest.param(OomReport(OomMessage("x", "gpu", "run")), 0, id="the message alone"),
        pytest.param(
            OomReport(OomMessage("x", "tpu", "compile", ops=OPS[:2])), 2, id="the message's buffers"
        ),
        pytest.param(OomReport(OomMessage(""), _summary()), 6, id="a peak that is no failure"),
        pytest.param(OomReport(MESSAGE, _summary(OPS[:1], 3)), 1, id="one buffer"),
    ],
)
def test_what_is_not_known_is_left_out(show: Show, report: OomReport, rows: int) -> None:
    """A page is made of what there is, without an error in the console."""
    assert len(_names(show(report))) == rows


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(OomReport(OomMessage("x"), _summary(OPS[:0], 3)), id="no buffers"),
        pytest.param(OomReport(OomMessage("x"), _summary((_op("a", 0),))), id="no bytes"),
        pytest.param(
            OomReport(OomMessage("x", used_bytes=5, limit_bytes=0), _summary((_op("a", 0),))),
            id="no bytes and no memory",
        ),
        pytest.param(
            OomReport(OomMessage("x"), _summary((_op("a", 1, unpadded_bytes=0),))),
            id="all padding",
        ),
        pytest.param(
            OomReport(OomMessage("x"), dataclasses.replace(_summary(), peak_position=POINTS)),
            id="a peak beyond the end",
        ),
        pytest.param(
            OomReport(OomMessage("x"), _summary((_op("a", 2**40), _op("b", 1)))), id="an exbibyte"
        ),
    ],
)
def test_sizes_of_every_magnitude_are_drawn(show: Show, report: OomReport) -> None:
    """Nothing at all, nothing but padding, and an exbibyte: no division by 0, no endless axis."""
    browser = show(report)
    assert [text for text in _all(browser, "main *") if re.search("NaN|Infinity", text)] == []
    odd = "return [...document.querySelectorAll('svg *')].filter((e) => [...e.attributes]"
    assert browser.execute_script(f"{odd}.some((a) => /NaN|Infinity/.test(a.value))).length") == 0
    assert len(_all(browser, "#ticks text")) < 20


# --- what it does ---------------------------------------------------------------------------------


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
    _click(browser, "#fold")
    if key != "size":
        _click(browser, f"th[data-key={key}] button")
    expected = sorted(OPS, key=lambda op: (number(op), -op.size_bytes))
    assert _sizes(browser) == [op.size_bytes for op in expected]
    heading = browser.find_element("css selector", f"th[data-key={key}]")
    first = heading.get_attribute("aria-sort")
    _click(browser, f"th[data-key={key}] button")
    back = sorted(OPS, key=lambda op: (-number(op), -op.size_bytes))
    assert _sizes(browser) == [op.size_bytes for op in back]
    assert {first, heading.get_attribute("aria-sort")} == {"ascending", "descending"}


def _sizes(browser: Any) -> list[int]:
    """The exact size of each row, as the inspector says it."""
    table = browser.find_element("id", "table")
    found = []
    table.send_keys("\ue011")  # home
    for _ in _names(browser):
        size = _all(browser, "#inspector dd")[0].split("(")[1].split(" ")[0]
        found.append(int(size.replace(",", "")))
        table.send_keys("\ue015")  # arrow down
    return found


def test_the_lifetime_sorts_from_the_longest(show: Show) -> None:
    """What lives through the whole program comes first, then 85, 60 and 20 points."""
    browser = show(REPORT)
    _click(browser, "th[data-key=lifetime] button")
    assert _names(browser)[-3:] == ["long", "layer_*/same", "late"]


def test_hovering_draws_the_lifetime_over_the_chart(show: Show) -> None:
    """The hovered row's buffers are drawn from the point at which they are made to their last."""
    browser = show(REPORT)
    late = next(n for n, name in enumerate(_names(browser), start=2) if name == "late")
    _hover(browser, f"#table tbody tr:nth-child({late})")
    box = browser.execute_script(
        "const b = document.querySelector('#lifetimes .life').getBBox();"
        "const p = document.querySelector('#base .rest').getBBox();"
        "return [(b.x - p.x) / p.width, b.width / p.width, b.height / p.height]"
    )
    assert box == pytest.approx([61 / POINTS, 20 / POINTS, GIB / PEAK], abs=0.005)
    assert "points 61 to 80 of 101" in _all(browser, "#inspector dd")
    assert _all(browser, "#map rect.on") == [""]
    _hover(browser, "h1")
    assert _all(browser, "#lifetimes .life") == []


def test_hovering_a_tile_shows_its_buffer(show: Show) -> None:
    """Treemap, chart and inspector speak of the same buffer."""
    browser = show(REPORT)
    _hover(browser, "#map rect[data-i='3']")
    assert _all(browser, "#inspector h3") == ["jit(step)/long"]
    assert _all(browser, "#inspector li") == ["/a/train.py:7", "/b/run.py:1"]
    assert len(_all(browser, "#lifetimes .life")) == 1


def test_the_treemaps_areas_are_the_sizes(show: Show) -> None:
    """Each tile's share of the map is its buffer's share of the peak."""
    areas = show(REPORT).execute_script(
        "return [...document.querySelectorAll('#map rect[data-i]')].map((r) =>"
        "[+r.dataset.i, r.width.baseVal.value * r.height.baseVal.value])"
    )
    whole = sum(area for _, area in areas)
    shares = {int(i): area / whole for i, area in areas}
    assert shares == pytest.approx({i: op.size_bytes / PEAK for i, op in enumerate(OPS)}, abs=1e-3)


def test_the_keyboard_moves_through_the_table(show: Show) -> None:
    """Arrow keys select, a screen reader is told which row, and Escape lets go."""
    browser = show(REPORT)
    table = browser.find_element("id", "table")
    table.send_keys("\ue015")  # arrow down
    active = table.get_attribute("aria-activedescendant")
    row = browser.find_element("id", active)
    assert row.get_attribute("aria-selected") == "true"
    assert row.get_attribute("aria-rowindex") == "3"
    assert len(_all(browser, "#lifetimes .life")) == 1
    table.send_keys("\ue00c")  # escape
    assert _all(browser, "#lifetimes .life") == []


def test_filter_and_roles_narrow_the_table(show: Show) -> None:
    """Words must all occur; a role that is switched off is not listed."""
    browser = show(REPORT)
    browser.find_element("id", "filter").send_keys("train.py same")
    assert _names(browser) == ["layer_*/same"]
    assert _all(browser, "#count") == ["4 buffers, 256 MiB"]
    browser.find_element("id", "filter").clear()
    browser.find_element("id", "filter").send_keys(" ")
    _click(browser, ".chip[data-role='0']")
    assert "params['w']" not in _names(browser)
    assert len(_names(browser)) == 5


# --- how it looks ---------------------------------------------------------------------------------

_CONTRAST = """
const numbers = (c) => c.match(/[\\d.]+/g).map(Number);
const light = (c) => numbers(c).slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function behind(e) {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if ((numbers(c)[3] ?? 1) > 0) return c;
  }
  return 'rgb(255, 255, 255)';
}
const low = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('script, noscript')) continue;
  const style = getComputedStyle(e);
  const tile = e.closest('#map') && !e.classList.contains('off');
  const ink = light(e.closest('svg') ? style.fill : style.color);
  const fills = tile
    ? [...document.querySelectorAll('#map rect')].map((r) => getComputedStyle(r).fill)
    : [behind(e)];
  for (const fill of fills) {
    const [a, b] = [ink, light(fill)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(`${e.textContent}: ${style.color} on ${fill}`);
  }
}
return low;
"""


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_is_legible(show: Show, dark: bool, phone: bool) -> None:
    """Every text has a contrast of 4.5 (WCAG AA) in both schemes, and nothing is wider than a
    phone."""
    browser = show(REPORT, dark=dark, phone=phone)
    assert browser.execute_script(_CONTRAST) == []
    assert browser.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    page = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert page == ("rgb(16, 18, 21)" if dark else "rgb(247, 247, 245)")


def test_the_names_have_the_most_room(show: Show) -> None:
    """What made a buffer is the widest column of the table, in a window of 1200 pixels too."""
    browser = show(REPORT)
    screen = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    widths = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('#table th')]"
        ".map((th) => [th.className.split(' ')[0], th.getBoundingClientRect().width]))"
    )
    assert max(widths, key=widths.__getitem__) == "c-name"
    assert widths["c-name"] > 220


def test_on_a_phone_a_tapped_row_opens_a_sheet(show: Show) -> None:
    """The inspector lies over the page's lower end once a row is chosen, until it is closed."""
    browser = show(REPORT, phone=True)
    sheet = browser.find_element("id", "inspector")
    assert not sheet.is_displayed()
    browser.execute_script("document.querySelector('#table tr[data-id]').click()")
    assert sheet.is_displayed()
    _click(browser, ".close")
    assert not sheet.is_displayed()


# --- how much and whatever is in it ---------------------------------------------------------------


def test_a_hundred_thousand_buffers_answer_within_two_seconds(show: Show) -> None:
    """The page of 100,000 different buffers opens, sorts, filters and scrolls without hanging."""
    count = 100_000
    ops = tuple(
        PeakOp(
            f"fusion.{n}", "fusion", f"jit(step)/layer_{n % 96}/dot", f"f32[{n},8]{{1,0}}",
            16384 + 32 * n, 16384 + 32 * n, "temporary", start=n, end=2 * count - n,
        )
        for n in range(count)
    )  # fmt: skip
    browser = show(OomReport(MESSAGE, _summary(ops, 2 * count + 1)))
    opened = browser.execute_script(
        "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    )
    assert opened < 2000
    for action in (
        "document.querySelector('th[data-key=lifetime] button').click()",
        "const f = document.getElementById('filter'); f.value = 'layer_7/';"
        "f.dispatchEvent(new Event('input')); f.value = ''; f.dispatchEvent(new Event('input'))",
        "document.getElementById('scroll').scrollTop = 1e6",
    ):
        start = time.perf_counter()
        browser.execute_script(action)
        browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
        assert time.perf_counter() - start < 2
    assert len(_names(browser)) < 100
    assert [text for text in _all(browser, "#map text.size") if "more" in text] == [
        f"and {count - 400:,} more"
    ]


def test_foreign_text_is_text(show: Show) -> None:
    """Markup and control characters in names, lines and messages are shown, never run."""
    evil = _op(EVIL, 64, op_name=EVIL, source=EVIL, shape=EVIL, stack=(EVIL,), role=EVIL)
    finding = Finding("x", EVIL, EVIL, EVIL, 1, "hint", "javascript:alert(1)", EVIL)
    report = OomReport(
        OomMessage(EVIL, "tpu", "compile", memory_space=EVIL),
        _summary((evil, *OPS)),
        DeviceMemory(EVIL, 1, deleted=(EVIL,)),
        rollup={"path": {EVIL: 1}},
        findings=(finding,),
        notes=(EVIL,),
        missing=(EVIL,),
        logdir=EVIL,
        function=EVIL,
        versions={EVIL: EVIL},
    )
    browser = show(report)
    _click(browser, "#fold")
    browser.find_element("id", "filter").send_keys("owned")
    assert len(_names(browser)) == 1
    assert browser.execute_script("return document.images.length + document.scripts.length") == 2
    assert browser.title.startswith("hbmwatch: ")
    assert _all(browser, ".findings a") == []
    source = browser.page_source
    assert not [c for c in ("\x1b", "\u202e") if c in source]


def test_a_notebook_shows_it_in_a_frame_of_its_own(browser: Any, tmp_path: Path) -> None:
    """_repr_html_ is one sandboxed frame, so that page and notebook leave each other alone."""
    document = f"<!doctype html><title>notebook</title><body>{REPORT._repr_html_()}</body>"
    (tmp_path / "notebook.html").write_text(document, encoding="utf-8")
    browser.get((tmp_path / "notebook.html").as_uri())
    frame = browser.find_element("tag name", "iframe")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    browser.switch_to.frame(frame)
    assert len(_names(browser)) == 6
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []


def test_a_notebook_gets_the_largest_buffers_only() -> None:
    """A cell's output stays small: 2,000 buffers at most, and it says so."""
    ops = tuple(_op(f"op{n}", 1 + n) for n in range(3000))
    html = OomReport(MESSAGE, _summary(ops))._repr_html_()
    assert "the 2,000 largest of 3,000" in html
    assert "op2999" in html and "op999&quot;" not in html


def test_the_data_cannot_end_its_script_element() -> None:
    """No angle bracket of a name is in the page's data, which still reads back."""
    evil = _op("x", 64, op_name="</script><!--<script>")
    html = OomReport(MESSAGE, _summary((evil,))).to_html()
    data = html.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert "</script><!--<script>" in json.loads(data)["strings"]
