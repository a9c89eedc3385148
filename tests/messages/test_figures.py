"""Figures that differ: the first one stays, unless another one agrees and is more exact."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._messages.figures import add_total, merge, refine
from hbmwatch._records.sizes import Size


def fields(resolution: dict[str, int] | None = None, **known: Any) -> dict[str, Any]:
    """The fields of a message that is being read."""
    return {"totals": {}, "resolution_bytes": resolution or {}, **known}


@pytest.mark.parametrize(
    ("known", "size", "expected"),
    [
        (fields(), None, fields()),
        (fields(), Size(7, 0), fields(used_bytes=7)),
        (fields(), Size(7, 2), fields({"used_bytes": 2}, used_bytes=7)),
        (fields(used_bytes=7), Size(8, 0), fields(used_bytes=7)),
        (fields({"used_bytes": 10}, used_bytes=100), Size(95, 0), fields(used_bytes=95)),
        (
            fields({"used_bytes": 10}, used_bytes=100),
            Size(95, 3),
            fields({"used_bytes": 3}, used_bytes=95),
        ),
        (
            fields({"used_bytes": 10}, used_bytes=100),
            Size(111, 0),
            fields({"used_bytes": 10}, used_bytes=100),
        ),
        (
            fields({"used_bytes": 10}, used_bytes=100),
            Size(95, 10),
            fields({"used_bytes": 10}, used_bytes=100),
        ),
    ],
)
def test_a_figure_is_refined(
    known: dict[str, Any], size: Size | None, expected: dict[str, Any]
) -> None:
    """A finer figure replaces one whose rounding allows it."""
    refine(known, "used_bytes", size)
    assert known == expected


def test_the_first_total_of_a_name_stays() -> None:
    """A later figure of the same name is another program's; a text without a size sets no total."""
    known = fields()
    for name, text in [("reserved", "1.0K"), ("reserved", "9.0K"), ("code", "none")]:
        add_total(known, name, text)
    assert known == {"totals": {"reserved": 1024}, "resolution_bytes": {"reserved": 103}}


def test_fields_are_merged() -> None:
    """Known words stay, finer figures replace coarser ones, and totals are added."""
    known = fields({"used_bytes": 10}, used_bytes=100, module="jit_f")
    more = fields({"code": 4}, used_bytes=99, module="jit_g", phase="run")
    more["totals"]["code"] = 64
    merge(known, more)
    assert known == {
        "totals": {"code": 64},
        "resolution_bytes": {"code": 4},
        "used_bytes": 99,
        "module": "jit_f",
        "phase": "run",
    }
