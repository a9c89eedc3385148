"""How the page looks, in a real browser: contrast, columns, on a phone."""

from __future__ import annotations

import dataclasses

import pytest

from hbmwatch import OomReport
from tests.report.pages import MESSAGE, REPORT, Show, click, op, peak

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
function hex(e) {  // of a label in the chart: the color of its band
  const parts = getComputedStyle(e).getPropertyValue('--role').match(/\\w\\w/g);
  return `rgb(${parts.map((part) => parseInt(part, 16))})`;
}
const low = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('script, noscript')) continue;
  const style = getComputedStyle(e);
  const tile = e.closest('#map') && !e.classList.contains('off');
  const ink = light(e.closest('svg') ? style.fill : style.color);
  const fill = tile ? getComputedStyle(e.parentElement.firstChild).fill
    : e.classList.contains('band-label') ? hex(e) : behind(e);
  const [a, b] = [ink, light(fill)].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push(`${e.textContent}: ${style.color} on ${fill}`);
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


def test_a_long_word_of_a_finding_breaks(show: Show) -> None:
    """Code that has no space in it does not make the page wider than a phone."""
    code = "jax.nn.dot_product_attention(query,key,value,implementation='cudnn')"
    finding = dataclasses.replace(REPORT.findings[0], title=code, evidence=code, remedy=code)
    browser = show(dataclasses.replace(REPORT, findings=(finding,), notes=(code,)), phone=True)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_nothing_of_a_finding_is_outside_of_its_card(show: Show) -> None:
    """On a phone its figures are in lines of their own, which wrap."""
    needs = dataclasses.replace(MESSAGE, used_bytes=1040 * 2**40, limit_bytes=16 * 2**30)
    browser = show(dataclasses.replace(REPORT, message=needs), phone=True)
    over = browser.execute_script(
        "const card = document.querySelector('.findings .card').getBoundingClientRect();"
        "return [...document.querySelectorAll('.findings .card *')]"
        ".filter((e) => e.getBoundingClientRect().right > card.right).map((e) => e.textContent)"
    )
    assert over == []


def test_a_row_on_a_phone_has_its_whole_source_line(show: Show) -> None:
    """The line of the code is what a reader looks for; the shape takes what is left."""
    named = op("x", 8, source="normalization_layers.py:133", shape="bf16[8,16,1024,1024]")
    browser = show(OomReport(MESSAGE, peak((named,))), phone=True)
    cut = "const e = document.querySelector('#table td.c-source');"
    assert not browser.execute_script(f"{cut} return e.scrollWidth > e.clientWidth")


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
    """A row has its role and its line, too; once it is chosen, the inspector lies over the page's
    lower end, until it is closed."""
    browser = show(REPORT, phone=True)
    seen = browser.execute_script(
        "return [...document.querySelector('#table tr[data-id]').cells]"
        ".filter((e) => e.offsetWidth).map((e) => e.textContent)"
    )
    assert seen == ["1.00 GiB", "", "other temporaries", "late", "", "train.py:9"]
    sheet = browser.find_element("id", "inspector")
    assert not sheet.is_displayed()
    browser.execute_script("document.querySelector('#table tr[data-id]').click()")
    assert sheet.is_displayed()
    click(browser, ".close")
    assert not sheet.is_displayed()


def test_forced_colors_keep_what_has_a_meaning(show: Show) -> None:
    """A system that replaces colors, as with high contrast, shows roles and what is chosen."""
    browser = show(REPORT)
    forced = [{"name": "forced-colors", "value": "active"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": forced})
    click(browser, ".marks")
    styles = "const of = (e) => getComputedStyle(document.querySelector(e));"
    dots = "[...document.querySelectorAll('.key .dot')].map((e) => getComputedStyle(e))"
    colors = browser.execute_script(f"return {dots}.map((s) => s.backgroundColor)")
    chosen = browser.execute_script(
        f"{styles} return [of('tr.active').outlineStyle, "
        "of('tr.found td:first-child').borderLeftStyle, "
        "of('.marks').backgroundColor !== of('.copy').backgroundColor]"
    )

    assert len(set(colors)) == len(colors) == 4
    assert chosen == ["solid", "solid", True]
