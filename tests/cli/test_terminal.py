"""What the commands print on a terminal: as wide as it is, and in color unless that is off."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest

from hbmwatch import OomMessage, OomReport, PeakOp, parse_oom
from hbmwatch._cli.console import look_of, print_wrapped
from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.text import SMALL_BUFFERS
from hbmwatch._report.text import report_text
from tests.cli.support import on_a_terminal, run

REPORTS_FOLDER = Path(__file__).parents[1] / "golden"
REPORTS = {
    file.stem: OomReport.from_dict(json.loads(file.read_text()))
    for file in sorted(REPORTS_FOLDER.glob("*.json"))
}
GOLDEN = Path(__file__).parent / "golden"
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
# Of a person's terminal, whatever runs the tests.
UNSET = ("CI", "NO_COLOR", "COLUMNS", "HBMWATCH_DISABLE")
TERMINALS: dict[str, tuple[int, dict[str, str]]] = {
    "60": (60, {}),
    "80": (80, {}),
    "100": (100, {}),
    "200": (200, {}),
    "no-color": (100, {"NO_COLOR": "1"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TERMINALS)
def test_a_report_on_a_terminal_reads_as_its_golden_text(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """For each width; HBMWATCH_UPDATE_GOLDEN=1 writes that instead."""
    columns, more = TERMINALS[case]
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more}.items():
        monkeypatch.setenv(name, value)
    # Progress, which a slow machine would show, goes to stderr.
    command = f"{shlex.quote(sys.executable)} -m hbmwatch explain train.json 2>/dev/null"
    child = subprocess.run(
        on_a_terminal(command, columns),
        cwd=REPORTS_FOLDER,
        env=dict(os.environ),  # readline, which pytest imports, sets COLUMNS behind its back
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=120,
    )
    shown = child.stdout.decode().replace("\r\n", "\n")
    file = GOLDEN / f"terminal-{case}.txt"
    if os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1":
        file.write_text(shown)

    assert shown == file.read_text()
    assert max(len(ESCAPE.sub("", line)) for line in shown.splitlines()) <= columns


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """A stream that writes on a real terminal of 120 columns."""
    shown, own = pty.openpty()
    termios.tcsetwinsize(own, (50, 120))
    with open(own, "w", encoding="utf-8") as stream:
        yield stream
    os.close(shown)


COLORED, COLORLESS = Look(120, color=True, bars=True), Look(120)
LOOKS: dict[str, tuple[str, dict[str, str], Look]] = {
    "a terminal": ("auto", {}, COLORED),
    "NO_COLOR": ("auto", {"NO_COLOR": "1"}, COLORLESS),
    "an empty NO_COLOR": ("auto", {"NO_COLOR": ""}, COLORED),
    "CI": ("auto", {"CI": "true"}, COLORLESS),
    "a dumb terminal": ("auto", {"TERM": "dumb"}, COLORLESS),
    "never": ("never", {}, COLORLESS),
    "always, despite NO_COLOR": ("always", {"NO_COLOR": "1"}, COLORED),
    "a width that was set": ("never", {"COLUMNS": "70"}, Look(70)),
    "a narrow terminal": ("never", {"COLUMNS": "20"}, Look(60)),
    "a wide terminal": ("never", {"COLUMNS": "500"}, Look(200)),
}


@pytest.mark.parametrize("case", LOOKS)
def test_the_environment_and_the_option_decide(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """On a terminal."""
    color, environment, expected = LOOKS[case]
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    # The terminal of who runs the tests does not count.
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)

    assert look_of(argparse.Namespace(color=color), terminal) == expected


@pytest.mark.parametrize(
    ("color", "encoding", "expected"),
    [
        ("auto", "utf-8", PLAIN),
        ("always", "utf-8", Look(PLAIN.width, color=True, bars=True)),
        ("always", "ascii", Look(PLAIN.width, color=True)),
    ],
)
def test_a_pipe_gets_the_plain_text(
    tmp_path: Path, color: str, encoding: str, expected: Look
) -> None:
    """Unless --color=always asks for more; bars only where they can be written."""
    with (tmp_path / "out").open("w", encoding=encoding) as stream:
        assert look_of(argparse.Namespace(color=color), stream) == expected


class Written:
    """A stdout that can do nothing but write, as an application may set it."""

    def write(self, text: str) -> int:
        return len(text)


def test_what_replaces_stdout_gets_the_plain_text() -> None:
    """It need not know whether it is a terminal."""
    assert look_of(argparse.Namespace(color="auto"), cast(TextIO, Written())) == PLAIN


def test_a_pipe_gets_verdicts_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of any length stays a line."""
    line = "step: " + "does not fit " * 30
    print_wrapped(line, argparse.Namespace(color="auto"))

    assert capsys.readouterr().out == f"{line}\n"


def test_a_terminal_gets_them_wrapped(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """At spaces, below their own indent; but no line of code."""
    code = "     write: step = jax.jit(step, donate_argnums=0, static_argnames=('one', 'two'))"
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setenv("COLUMNS", "60")
    print_wrapped(f"  1. {'word ' * 15}\n{code}", argparse.Namespace(color="never"))

    assert written.getvalue().splitlines() == [
        "  1. word word word word word word word word word word word",
        "     word word word word",
        code,
    ]


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 79, 80, 81, 99, 133, 200])
@pytest.mark.parametrize("bars", [False, True])
def test_no_width_cuts_our_own_words(name: str, width: int, bars: bool) -> None:
    """Outside of the table all is there at each width; in it, sizes, kinds and notes are."""
    report = REPORTS[name]
    assert report.summary is not None
    text = report_text(report, look=Look(width, bars=bars))

    assert max(map(len, text.splitlines())) <= width
    assert prose(text) == prose(report_text(report, look=Look(2000)))
    for count, op in report.summary.grouped()[:10]:
        assert all(word in text for word in own_words(count, op))


def prose(text: str) -> str:
    """A report without its table of buffers, and without spaces."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if "Largest buffers" in line) + 1
    end = next((n for n, line in enumerate(lines) if "What to try first" in line), len(lines))
    return "".join(" ".join([*lines[:start], *lines[end:]]).split())


def own_words(count: int, op: PeakOp) -> list[str]:
    """What hbmwatch says of a buffer, in its own words."""
    if not op.instruction:
        return [SMALL_BUFFERS]
    kind = "argument" if op.kind == "parameter" else op.kind
    padded = [f"[{op.expansion:.1f}x padded]"] if op.expansion >= 1.2 else []
    return [kind, *padded, *([f"{count} x"] if count > 1 else [])]


@pytest.mark.parametrize("name", REPORTS)
def test_color_adds_nothing_but_escape_sequences(name: str) -> None:
    """Without them the text is the plain one, and the text of a report never has them."""
    report = REPORTS[name]
    colored = report_text(report, look=Look(99, color=True))

    assert "\x1b[1m" in colored
    assert ESCAPE.sub("", colored) == str(report)


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_of_any_width_can_be_read_again(name: str, width: int) -> None:
    """What was copied from a narrow or a wide terminal says the same as a log."""
    report = REPORTS[name]
    texts = (str(report), report_text(report, look=Look(width)))
    plain, other = (dataclasses.replace(parsed(text), text="") for text in texts)

    assert other == plain


def parsed(text: str) -> OomMessage:
    found = parse_oom(text)
    assert found is not None
    return found


def test_each_command_has_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    """A word that it does not know is a usage error."""
    status, _, err = run(capsys, "explain", "--color", "blue")

    assert (status, "invalid choice: 'blue'" in err) == (2, True)
