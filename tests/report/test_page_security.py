"""Foreign text on the page stays text, in a real browser and in the file."""

from __future__ import annotations

import json

import pytest

from hbmwatch import DeviceMemory, Finding, OomMessage, OomReport
from tests.report.pages import MESSAGE, OPS, Show, click, names, op, peak, texts

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m\u202e"


@pytest.mark.slow
def test_foreign_text_is_text(show: Show) -> None:
    """Markup and control characters in names, lines and messages are shown, never run."""
    evil = op(EVIL, 64, op_name=EVIL, source=EVIL, shape=EVIL, stack=(EVIL,), role=EVIL)
    finding = Finding("x", EVIL, EVIL, EVIL, 1, "hint", "javascript:alert(1)", EVIL)
    report = OomReport(
        OomMessage(EVIL, "tpu", "compile", memory_space=EVIL),
        peak((evil, *OPS)),
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
    click(browser, "#fold")
    browser.find_element("id", "filter").send_keys("owned")
    assert len(names(browser)) == 1
    assert browser.execute_script("return document.images.length + document.scripts.length") == 2
    assert browser.title.startswith("hbmwatch: ")
    assert texts(browser, ".findings a") == []
    source = browser.page_source
    assert not [c for c in ("\x1b", "\u202e") if c in source]


def test_the_data_cannot_end_its_script_element() -> None:
    """No angle bracket of a name is in the page's data, which still reads back."""
    evil = op("x", 64, op_name="</script><!--<script>")
    html = OomReport(MESSAGE, peak((evil,))).to_html()
    data = html.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert "</script><!--<script>" in json.loads(data)["buffers"]["strings"]
