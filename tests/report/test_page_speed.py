"""The page of very many buffers, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch import OomReport, PeakOp
from tests.report.pages import MESSAGE, Show, names, peak, texts

COUNT = 100_000
SORT = "document.querySelector('th[data-key=lifetime] button').click()"
FILTER = (
    "const f = document.getElementById('filter'); f.value = 'layer_7/';"
    "f.dispatchEvent(new Event('input')); f.value = ''; f.dispatchEvent(new Event('input'))"
)
SCROLL = "document.getElementById('scroll').scrollTop = 1e6"


def large_report(count: int) -> OomReport:
    """A report with this number of buffers, all different."""
    ops = tuple(
        PeakOp(
            f"fusion.{n}", "fusion", f"jit(step)/layer_{n % 96}/dot", f"f32[{n},8]{{1,0}}",
            16384 + 32 * n, 16384 + 32 * n, "temporary", start=n, end=2 * count - n,
        )
        for n in range(count)
    )  # fmt: skip
    return OomReport(MESSAGE, peak(ops, 2 * count + 1))


def act(browser: Any, action: str) -> None:
    """Run an action, and wait until the page is drawn."""
    browser.execute_script(action)
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")


@pytest.mark.slow
def test_a_hundred_thousand_buffers_are_a_small_document(show: Show) -> None:
    """Only visible rows, a few hundred tiles and one step per pixel become elements or paths."""
    browser = show(large_report(COUNT))
    for action in (SORT, FILTER, SCROLL):
        act(browser, action)

    assert len(names(browser)) < 100
    assert browser.execute_script("return document.querySelectorAll('*').length") < 3000
    longest = "return Math.max(...[...document.querySelectorAll('path')].map((p) => "
    assert browser.execute_script(f"{longest}p.getAttribute('d').length))") < 100_000
    more = [text for text in texts(browser, "#map text.size") if "more" in text]
    assert more == [f"and {COUNT - 400:,} more"]


def task_seconds(browser: Any) -> float:
    """Processor seconds that the page has taken so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    (seconds,) = (metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    return float(seconds)


@pytest.mark.benchmark
@pytest.mark.parametrize("action", [SORT, FILTER, SCROLL], ids=["sort", "filter", "scroll"])
def test_the_work_grows_with_the_number_of_buffers_and_no_faster(show: Show, action: str) -> None:
    """Ten times as many buffers take at most 20 times the processor time."""
    seconds = []
    for count in (COUNT // 10, COUNT):
        browser = show(large_report(count))
        browser.execute_cdp_cmd("Performance.enable", {})
        before = task_seconds(browser)
        act(browser, action)
        seconds.append(task_seconds(browser) - before)

    assert seconds[1] < 20 * seconds[0]
