"""A row of the table finds its text and reads its figures, on rows and texts of a few words."""

from __future__ import annotations

import pytest

from hbmwatch import OomMessage
from hbmwatch._messages.figures import read_figures
from hbmwatch._messages.wording import Wording, optional

KIB, MIB = 1 << 10, 1 << 20
ROW = Wording("row", OomMessage(""), "needs ", "<used_bytes>" + optional(" of <limit_bytes>", "!"))


def figures(row: Wording, text: str) -> list[dict[str, object]]:
    """What each match of a row states, without the empty mappings."""
    read = [read_figures(match) for match in row.matches(text)]
    return [{name: value for name, value in fields.items() if value != {}} for fields in read]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it needs 2 bytes", [{"used_bytes": 2}]),
        ("it needs 2 bytes of 1 bytes", [{"used_bytes": 2, "limit_bytes": 1}]),
        ("needs 2 bytes, then it needs 3 bytes", [{"used_bytes": 2}, {"used_bytes": 3}]),
        ("it needs more", []),
        ("Needs 2 bytes", []),
        ("", []),
    ],
)
def test_a_row_is_found_at_its_anchor(text: str, expected: list[dict[str, object]]) -> None:
    """Each place is found, and what is cut off is not stated."""
    assert figures(ROW, text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("<#used_bytes>", "12 x", {"used_bytes": 12}),
        (
            "<used_bytes>",
            "1.5M",
            {"used_bytes": 1536 * KIB, "resolution_bytes": {"used_bytes": 104858}},
        ),
        ("<module> x", "jit_step.1 x", {"module": "jit_step.1"}),
        ("<memory_space> x", "vmem x", {"memory_space": "vmem"}),
        ("<total_In_Use>", "8 bytes", {"totals": {"In Use": 8}}),
        (
            r"<approx_used_bytes> \(<used_bytes>\)",
            "1.0K (1025B)",
            {"used_bytes": 1025},
        ),
        (
            "<#rounded_up_used_bytes>",
            "1024",
            {"used_bytes": 1024, "resolution_bytes": {"used_bytes": 255}},
        ),
        (
            r"<approx_used_bytes> \(<#rounded_up_used_bytes>\)",
            "1.0M (1048576)",
            {"used_bytes": MIB, "resolution_bytes": {"used_bytes": 255}},
        ),
    ],
)
def test_a_placeholder_is_a_field(pattern: str, text: str, expected: dict[str, object]) -> None:
    """Sizes with and without unit, words, totals; the more exact of two figures counts."""
    assert figures(Wording("row", OomMessage(""), "has ", pattern), f"has {text}") == [expected]


def test_a_text_without_the_needle_is_not_searched() -> None:
    """A common anchor costs nothing where the rest of the phrase is missing."""
    row = Wording("row", OomMessage(""), "Total ", "usage", needle="usage >=")
    assert list(row.matches("Total usage")) == []
    assert [match[0] for match in row.matches("Total usage >= 1G")] == ["Total usage"]
