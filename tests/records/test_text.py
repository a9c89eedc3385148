"""The report as a person reads it: golden texts of stored real reports, and untrusted text."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbmwatch import DeviceMemory, OomMessage, OomReport, PeakOp
from hbmwatch._records.buffer_table import buffer_rows
from hbmwatch._records.look import Look
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.text import (
    _wrapped_by_columns,
    clean,
    columns,
    memory_space_name,
    plural,
    wrapped,
)
from hbmwatch._report.text import headline, report_text

# Each <case>.json is a report that a real failure gave, and <case>.txt how it reads.
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(file.stem for file in GOLDEN.glob("*.json"))


def stored(case: str) -> OomReport:
    """A stored report."""
    return OomReport.from_dict(json.loads((GOLDEN / f"{case}.json").read_text()))


@pytest.mark.parametrize("case", CASES)
def test_a_report_reads_as_its_golden_text(case: str) -> None:
    """The text is the golden file's; HBMWATCH_UPDATE_GOLDEN=1 writes that instead."""
    report = stored(case)
    text = f"{headline(report)}\n\n{report}\n\n{report.summary}\n"
    file = GOLDEN / f"{case}.txt"
    if os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1":
        file.write_text(text)

    assert text == file.read_text()


@pytest.mark.parametrize(
    ("verdict", "searches"),
    [
        ("4 MiB must be freed.", True),
        ("To fit, return less, use a narrower dtype, or shard over 2 or more such devices.", True),
        ("To fit, return less or shard over 3 or more such devices.", False),
    ],
)
def test_no_search_is_advised_where_no_change_can_help(verdict: str, searches: bool) -> None:
    """Where the output alone exceeds the device, also in a narrower dtype."""
    report = dataclasses.replace(stored("train"), verdict=verdict)
    lines = str(report).splitlines()

    line = "  To search for a change that makes the step fit: hbmwatch.plan(train_step, ...)"
    assert (line in lines) == searches


@pytest.mark.parametrize("case", CASES)
def test_a_report_fits_a_terminal(case: str) -> None:
    """Below 100 columns, at most about 40 lines, no color."""
    lines = str(stored(case)).splitlines()

    assert max(map(len, lines)) < 100
    assert len(lines) <= 45
    assert all(line.isprintable() for line in lines)


@given(st.text(max_size=400), st.integers(10, 200))
def test_foreign_text_comes_out_harmless(text: str, width: int) -> None:
    """No control, escape or bidirectional character, and no more than the width."""
    shown = clean(text, width)

    assert len(shown) <= width
    assert not any(ord(c) < 32 or c in "\x7f\x1b\u202e\u2066\u200b" for c in shown)


def test_a_wide_character_takes_two_columns() -> None:
    """A name is shortened, and columns stay in line, by what a terminal shows of it."""
    assert [clean("数据/训练.py:12", width) for width in (15, 14, 4)] == [
        "数据/训练.py:12",
        "数据\u2026练.py:12",
        "\u202612",
    ]
    ops = tuple(
        PeakOp(f"x{n}", op_name=name, shape="f32[8]", size_bytes=2**20, source="训练.py:1")
        for n, name in enumerate(["名前" * 30, "plain", "a名"])
    )
    rows = buffer_rows([(1, op) for op in ops], 3)
    assert len({columns(row.partition("训练")[0]) for row in rows}) == 1
    assert max(map(columns, rows)) <= 99
    narrow = buffer_rows([(1, op) for op in ops], 3, Look(width=60))
    assert max(map(columns, narrow)) <= 60


@given(
    st.text(st.sampled_from("ab 数据，  ー한e\u0301"), max_size=200),
    st.integers(0, 6),
    st.integers(0, 4),
    st.booleans(),
)
def test_a_sentence_with_wide_characters_fits_its_lines(
    text: str, indent: int, hang: int, whole_words: bool
) -> None:
    """Nothing of it is lost; only a word that has to stay whole may be longer than a line."""
    look = Look(width=20)
    lines = wrapped(text, indent, hang, whole_words, look)

    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        assert columns(line) <= 20 or (whole_words and " " not in line.strip())
        assert line.startswith(" " * (indent + hang if line is not lines[0] else indent))


@given(
    st.text("abcdefgh  \t\n", max_size=300),
    st.integers(0, 6),
    st.integers(0, 4),
    st.booleans(),
)
def test_words_are_broken_as_textwrap_breaks_them(
    text: str, indent: int, hang: int, whole_words: bool
) -> None:
    """Lines of ASCII and of wide characters look alike, also with runs of spaces."""
    look = Look(width=20)
    others = " " * (indent + hang)
    lines = _wrapped_by_columns(text, " " * indent, others, whole_words, look)

    assert lines == wrapped(text, indent, hang, whole_words, look)


def test_wide_characters_are_wrapped_where_no_two_columns_are_left() -> None:
    """One character a line at least, and a long word in time that grows with its length."""
    assert wrapped("数据", 19, 1, look=Look(width=20)) == [" " * 19 + "数", " " * 20 + "据"]
    assert wrapped("数 a", 25, 0, look=Look(width=20)) == [" " * 25 + "数", " " * 25 + "a"]
    long = "数" * 100_000
    lines = wrapped(long, 2, 0, look=Look(width=60))
    assert lines == [f"  {'数' * 29}"] * 3448 + [f"  {'数' * 8}"]


def test_a_report_in_chinese_fits_its_width() -> None:
    """Its notes, findings and the lines of its arguments."""
    stored = OomReport.from_dict(json.loads((GOLDEN / "train.json").read_text()))
    report = dataclasses.replace(
        stored, notes=("数据训练 " * 60, "显存不足" * 60), function="训练步骤" * 9
    )

    for width in (60, 99):
        assert max(map(columns, report_text(report, look=Look(width)).splitlines())) <= width


def test_a_memory_space_has_the_name_of_xla_s_documentation() -> None:
    """On-chip memory is written in capitals; a space that is not known keeps its name."""
    known = {
        "dram": "DRAM",
        "l1": "L1",
        "hbm": "HBM",
        "host": "host memory",
        **{name: name.upper() for name in ON_CHIP},
    }

    assert {name: memory_space_name(name) for name in known} == known
    assert memory_space_name("sparsecore") == "sparsecore"


HOSTILE = "\x1b[31m\u202e{0}%s<script>\r\n" + "x" * 10_000


def hostile_report() -> OomReport:
    """A report in which every foreign text is hostile."""
    op = PeakOp(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 2**30, 2**30, "parameter", source=HOSTILE)
    message = OomMessage(HOSTILE, ops=(op,), module=HOSTILE, memory_space=HOSTILE)
    return OomReport(
        message,
        device=DeviceMemory(HOSTILE, 1),
        notes=(HOSTILE,),
        missing=(HOSTILE,),
        function=HOSTILE,
        logdir=HOSTILE,
        versions={HOSTILE: HOSTILE},
    )


def test_a_hostile_report_comes_out_harmless() -> None:
    """Whatever names and messages hold, the text is printable, short, and on lines of its own."""
    text = str(hostile_report())

    assert all(line.isprintable() and len(line) < 220 for line in text.split("\n"))
    assert len(text) < 4_000


def test_scalars_are_flat_numbers_that_are_known() -> None:
    """Each figure of a stored report has a flat name, and unknown ones are left out."""
    report = stored("train")
    scalars = report.scalars()

    assert report.summary is not None
    assert scalars["hbm/peak/peak_bytes"] == report.summary.peak_bytes
    assert scalars["hbm/message/limit_bytes"] == report.message.limit_bytes
    assert "hbm/message/free_bytes" not in scalars
    assert all(isinstance(value, (int, float)) for value in scalars.values())
    assert {f"hbm/breakdown/{name}_bytes" for name in report.breakdown} <= scalars.keys()


def test_the_summary_shows_as_many_rows_as_asked_for() -> None:
    """`top` bounds the rows, and the rest is one line."""
    report = stored("train")
    summary: Any = report.summary
    text = summary.text(top=2)

    assert len(text.splitlines()) == 5
    assert text.splitlines()[-1].strip().startswith("and ")


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "row", "0 rows"),
        (1, "older run", "1 older run"),
        (2, "leaf", "2 leaves"),
        (3, "temporary", "3 temporaries"),
        (4, "array", "4 arrays"),
    ],
)
def test_one_thing_is_no_several_things(number: int, noun: str, expected: str) -> None:
    """In each text that counts: "1 buffers" is no English."""
    assert plural(number, noun) == expected
