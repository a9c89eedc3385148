"""The rules that exist in Python and in the page's JavaScript, on the cases that both run.

page/shared.test.mjs runs the same cases in Node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch import PeakOp, PeakSummary
from hbmwatch._records.paths import path_keys
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import (
    buffer_name,
    named_blocks,
    unnumbered,
    without_layout,
    without_outer_jit,
)

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "shared_cases.json").read_text())
RULES: dict[str, Callable[[Any], str]] = {
    "format_size": format_size,
    "without_outer_jit": without_outer_jit,
    "unnumbered": unnumbered,
    "without_layout": without_layout,
    "named_blocks": lambda name: " ".join(named_blocks(name)),
    "path_keys": lambda path: " ".join(path_keys(path)),
}


def test_every_rule_is_tried() -> None:
    """No list of the file is without a test."""
    assert CASES.keys() == {"about", *RULES, "buffer_name", "equal_buffers"}


@pytest.mark.parametrize(
    ("rule", "given", "expected"), [(rule, *case) for rule in RULES for case in CASES[rule]]
)
def test_a_rule_gives_what_the_page_shows(rule: str, given: Any, expected: str) -> None:
    """Sizes, names and shapes read the same in the text and on the page."""
    assert RULES[rule](given) == expected


@pytest.mark.parametrize(("fields", "several", "expected"), CASES["buffer_name"])
def test_a_row_has_the_name_of_the_page(
    fields: dict[str, Any], several: bool, expected: str
) -> None:
    """A buffer has its name without the outermost jit; several have it without numbers."""
    assert buffer_name(PeakOp(**fields), several) == expected


@pytest.mark.parametrize("case", CASES["equal_buffers"], ids=lambda case: case["why"])
def test_the_text_folds_the_buffers_that_the_page_folds(case: dict[str, Any]) -> None:
    """Buffers are equal in PeakSummary.grouped() if they are on the page."""
    ops = tuple(PeakOp(**case[side]) for side in ("one", "other"))
    heap = np.zeros(0, dtype=np.int64)
    summary = PeakSummary("jit_step", 1, "hbm", 0, 0, None, heap, 0, 0, 0, 0, 0, 0, ops)

    assert len(summary.grouped()) == (1 if case["equal"] else 2)
