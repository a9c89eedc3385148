"""What logs, terminals and quotes put around a text is removed, on texts of a few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbmwatch._messages.log_text import collapse_whitespace, strip_log_decoration

CASES = {
    "colors": ("\x1b[31mred\x1b[0m", "red"),
    "colors as text": (r"\x1b[31mred\x1b[0m", "red"),
    "colors without their escape": ("[31mred[0m", "red"),
    "an escaped line break": (r"a\nb", "a\nb"),
    "a line break that is escaped twice": (r"a\\nb", "a\nb"),
    "a tab": (r"a\tb", "a b"),
    "a quote": (r"\"a\"", '"a"'),
    "a letter by its number": (r"a \u003e b", "a > b"),
    "a surrogate": (r"\ud800", r"\ud800"),
    "entities": ("a &lt; b &amp; c &#39;d&#39;", "a < b & c 'd'"),
    "a break of HTML": ("a<br>b", "a\nb"),
    "emphasis": ("`E1000` **hbm**", "E1000 hbm"),
    "a literal on two lines": ('"a "\n "b"', '"a b"'),
    "a rank": ("[rank0]: a\n[rank0]: b", " a\n b"),
    "a time": ("2026-03-01 10:00:00.5: a", " a"),
    "a mail's quote": ("> > a", " a"),
    "a box": ("│ a │", " a"),
    "a payload": ("a [type.googleapis.com/x='\\x08 b'] c", "a  c"),
    "Windows line ends": ("a\r\nb\rc", "a\nb\nc"),
    "a program that fits": (
        "I0320 03:59:34.722541 855 x_compiler_backend.cc:2163] Total hbm usage >= 1.0M:\nb",
        "\nb",
    ),
    "a link": ("b?q=1%20GiB%3A%20a+b x%20y", "b?q=1 GiB: a+b x%20y"),
    "a form": ("a=1+GiB%3A+b%2Bc", "a=1 GiB: b+c"),
    "a link in Chinese": ("a%20%E5%86%85%20b", "a \u5185 b"),
    "names of instructions": ("(%add.1,%add.2,%batch)", "(%add.1,%add.2,%batch)"),
    "a sum": ("a + b+c 50%+", "a + b+c 50%+"),
    "brackets that say something": ("memory [Op:Conv2D]", "memory [Op:Conv2D]"),
    "plain text": ("12 bytes: too many", "12 bytes: too many"),
}


@pytest.mark.parametrize("case", CASES)
def test_decoration_is_removed(case: str) -> None:
    """The words of the message stay."""
    text, expected = CASES[case]
    assert strip_log_decoration(text) == expected


@pytest.mark.slow
@given(st.text())
def test_collapsed_text_has_single_spaces(text: str) -> None:
    """The words stay in order, and collapsing again changes nothing; a space ends it as before."""
    flat = collapse_whitespace(text)
    assert flat[-1:].isspace() == text[-1:].isspace()
    assert flat.split() == text.split()
    assert collapse_whitespace(flat) == flat
    assert "  " not in flat
