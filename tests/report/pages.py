"""Reports whose pages the tests open, and what the tests do on a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbmwatch import DeviceMemory, Finding, LiveArrays, OomMessage, OomReport, PeakOp, PeakSummary

Show = Callable[..., Any]
MIB, GIB = 2**20, 2**30
POINTS = 101
A4 = {"paperWidth": 8.27, "paperHeight": 11.69}


def op(name: str, mib: int, **more: Any) -> PeakOp:
    """A temporary buffer, unless `more` says otherwise."""
    known = {"opcode": "fusion", "op_name": f"jit(step)/{name}", "kind": "temporary"}
    size = {"size_bytes": mib * MIB, "unpadded_bytes": mib * MIB}
    return PeakOp(**{"instruction": name, **known, **size, **more})


OPS: tuple[PeakOp, ...] = (
    op("w", 512, op_name="params['w']", kind="parameter", role="parameters"),
    op("m", 256, op_name="opt_state.mu['w']", kind="parameter", role="optimizer state"),
    op("late", 1024, unpadded_bytes=128 * MIB, start=60, end=80, source="train.py:9"),
    op("long", 128, start=5, end=90, source="train.py:7", stack=("/a/train.py:7", "/b/run.py:1")),
    *[op(f"layer_{n}/same", 64, start=10 + n, end=70, source="train.py:5") for n in range(4)],
    PeakOp("", size_bytes=3000),
)


PEAK = sum(op.size_bytes for op in OPS)


def peak(ops: tuple[PeakOp, ...] = OPS, points: int = POINTS) -> PeakSummary:
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
    peak(),
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
            buffers=("late", "layer_2/same"),
        ),
    ),
    verdict="This frees up to 512 MiB; 133 MiB must be freed, so this is probably enough.",
    notes=("a note",),
    missing=("the device's memory: not asked",),
    logdir="/tmp/xprof",
    function="train_step",
    versions={"jax": "0.10.2"},
)


def audit(browser: Any, axe: str) -> dict[str, Any]:
    """What axe-core finds on a page: its violations, and how many rules hold."""
    # Not through the page: its policy forbids a script of ours.
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    found: dict[str, Any] = browser.execute_async_script(
        "const done = arguments[0]; axe.run(document).then((results) => done({"
        "violations: results.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]),"
        "passes: results.passes.length}))"
    )
    return found


def texts(browser: Any, selector: str) -> list[str]:
    """The texts of all elements that a selector finds."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    texts: list[str] = browser.execute_script(script, selector)
    return texts


def names(browser: Any) -> list[str]:
    """The names of the table's rows."""
    return texts(browser, "#table td.c-name")


def click(browser: Any, selector: str) -> None:
    """Click an element, in the middle of the window: a part of the page stays at its top."""
    scroll = "document.querySelector(arguments[0]).scrollIntoView({block: 'center'});"
    drawn = "requestAnimationFrame(() => setTimeout(arguments[1]))"  # a row may be another element
    browser.execute_async_script(scroll + drawn, selector)
    browser.find_element("css selector", selector).click()


def hover(browser: Any, selector: str) -> None:
    """Move the pointer to an element."""
    from selenium.webdriver import ActionChains  # not at the top: pages need no browser

    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element(element).perform()


def wait(browser: Any) -> Any:
    """Waits for what a browser will show."""
    from selenium.webdriver.support.wait import WebDriverWait  # not at the top: pages need none

    return WebDriverWait(browser, 240)  # the start of a server, on a machine that is busy
