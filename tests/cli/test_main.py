"""What all commands share: help, versions, exit statuses, and what goes to which stream."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hbmwatch
from hbmwatch import OomReport, parse_ooms
from hbmwatch._cli.main import COMMANDS, main
from tests.cli.support import LOG, run, run_in_child


def test_version_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """hbmwatch comes first, then jax, jaxlib and the plugins. None is imported."""
    status, out, _ = run(capsys, "--version")
    lines = out.splitlines()
    assert (status, lines[:3]) == (
        0,
        [
            f"hbmwatch {hbmwatch.__version__}",
            f"jax {importlib.metadata.version('jax')}",
            f"jaxlib {importlib.metadata.version('jaxlib')}",
        ],
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_command_shows_an_example(
    capsys: pytest.CaptureFixture[str], command: object
) -> None:
    """Each command's help ends in lines that can be typed."""
    name = command.name  # type: ignore[attr-defined]
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert f"  hbmwatch {name} " in out.partition("\nexample")[2] + " "


def test_the_help_lists_commands_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    """`hbmwatch --help` is enough to go on."""
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert [c.name for c in COMMANDS if f"    {c.name} " not in out] == []
    assert "exit status:\n  0    done\n" in out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("peak", ["check that the module fits a limit", "number of buffers to show"]),
        ("diff", ["check that the second module fits a limit", "number of changes to show"]),
    ],
)
def test_a_shared_option_says_what_it_does_for_its_command(
    capsys: pytest.CaptureFixture[str], command: str, options: list[str]
) -> None:
    """`diff` shows changes, and its limit is for the second program."""
    _, out, _ = run(capsys, command, "--help")
    words = " ".join(out.split())
    assert [option for option in options if option not in words] == []


@pytest.mark.parametrize("command", ["", "plan", "fits"])
def test_the_help_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """At 60 columns it says the same as at 200; an example stays on one line."""
    shown = {}
    for width in (60, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        shown[width] = run(capsys, *filter(None, (command, "--help")))[1]
        prose = [line for line in shown[width].splitlines() if not line.startswith("  hbmwatch ")]
        assert max(map(len, prose)) <= width
    after_usage = [" ".join(text.partition("\n\n")[2].split()) for text in shown.values()]
    assert after_usage[0] == after_usage[1]


@pytest.fixture
def places(tmp_path: Path, profile: Path) -> dict[str, str]:
    """Paths that something is wrong with."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.xplane.pb").write_bytes(b"")
    (tmp_path / "log").write_text("all is well\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "old.json").write_text('{"schema": 0}')
    (tmp_path / "message.json").write_text(json.dumps(OomReport(parse_ooms(LOG)[0]).to_dict()))
    return {"here": str(tmp_path), "profile": str(profile)}


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["explain", "{here}/log"], 1, "no device out-of-memory error in 1 line of {here}/log"),
        (["explain", "{here}/empty.xplane.pb"], 3, "{here}/empty.xplane.pb is empty"),
        (["fold", "{here}/folder"], 1, "no out-of-memory error found in {here}/folder"),
        (["explain", "{here}/no"], 3, "cannot read {here}/no: No such file or directory"),
        (["explain", "{here}/folder"], 3, "cannot read {here}/folder: Is a directory"),
        (["peak", "{here}/no"], 3, "there is no profile at {here}/no: no such file or folder"),
        (["peak", "{here}/folder"], 3, "there is no profile in {here}/folder: expected plugins"),
        (["peak", "{here}/empty.xplane.pb"], 3, "{here}/empty.xplane.pb is empty"),
        (
            ["peak", "{here}/log"],
            3,
            "{here}/log is text, not a profile: `hbmwatch explain` reads logs",
        ),
        (["peak", "{profile}", "--module", "jit_no"], 3, "holds no module 'jit_no': choose one of"),
        (["peak", "{profile}", "--html", "{here}/no/x"], 3, "cannot write {here}/no/x: No such"),
        (["diff", "{profile}", "{here}/no"], 3, "there is no profile at {here}/no"),
        (
            ["diff", "{here}/bad.json", "{profile}"],
            3,
            "{here}/bad.json is not a saved hbmwatch report: Expecting",
        ),
        (
            ["diff", "{here}/deep.json", "{profile}"],
            3,
            "{here}/deep.json is not a saved hbmwatch report: maximum",
        ),
        (["diff", "{here}/old.json", "{profile}"], 3, "old.json is not a saved hbmwatch report: "),
        (["diff", "{here}/message.json", "{profile}"], 3, "message.json has no memory peak"),
        (["peak", "{profile}", "--top", "0"], 2, "argument --top: '0' is not a positive number"),
        (["peak", "{profile}", "--top", "ten"], 2, "--top: 'ten' is not a positive number"),
        (["peak", "{profile}", "--memory-space", "ram"], 2, "invalid choice: 'ram'"),
        (["peak", "{profile}", "--limit", "80"], 2, "--limit: '80' has no unit: write 80GiB"),
        (
            ["peak", "{profile}", "--limit", "80G8"],
            2,
            "--limit: '80G8' is not a size such as 80GiB",
        ),
        (["peak", ""], 2, "argument PATH: the path is empty"),
        (["peak", "{profile}", "--html", ""], 2, "argument --html: the path is empty"),
        (["explain", ""], 2, "argument FILE: the path is empty"),
        (["diff", "{profile}", ""], 2, "argument B: the path is empty"),
        (["show", ""], 2, "argument PATH: the path is empty"),
        (["fold", ""], 2, "argument SOURCE: the path is empty"),
        (["run", "--html", "", "{here}/log"], 2, "argument --html: the path is empty"),
        (["run", "--logdir", "", "{here}/log"], 2, "argument --logdir: the path is empty"),
        (["explode"], 2, "invalid choice: 'explode'"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_an_error_is_one_sentence_on_stderr(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, str],
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    """The sentence says what is wrong and where; the exit status says which kind of error it is."""
    given = [argument.format(**places) for argument in arguments]
    ended, out, err = run(capsys, *given)
    assert (ended, out) == (status, "")
    assert sentence.format(**places) in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_closed_output_pipe_is_no_traceback(profile: Path) -> None:
    """`hbmwatch peak ... | head -0` ends quietly, with the shell's status for a broken pipe."""
    command = [sys.executable, "-m", "hbmwatch", "peak", "--json", str(profile)]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("redirection", "status", "sentence"),
    [
        ("<&-", 3, "hbmwatch: cannot read stdin: it is closed\n"),
        ("< log >&-", 3, "hbmwatch: cannot write: stdout is closed\n"),
        ("< log 2>&- >/dev/null", 0, ""),
        ("no 2>&-", 3, ""),
        ("< log > /dev/full", 3, "hbmwatch: [Errno 28] No space left on device\n"),
    ],
)
def test_closed_and_full_streams_are_no_traceback(
    tmp_path: Path, redirection: str, status: int, sentence: str
) -> None:
    """Stderr gets one line if it is open; no error goes to stdout."""
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "log").write_text(LOG)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        ["bash", "-c", f'"$0" -m hbmwatch explain {redirection}', sys.executable],
        cwd=tmp_path, env=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", sentence)


def test_characters_that_stdout_cannot_encode_are_replaced(tmp_path: Path) -> None:
    """A narrow terminal encoding is no error."""
    (tmp_path / "log").write_text(LOG)
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = run_in_child("explain", str(tmp_path / "log"), env=narrow)
    assert (ended.returncode, ended.stderr) == (0, b"")


class _InterruptedInput:
    """A stdin whose reader presses Ctrl-C."""

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> _InterruptedInput:
        return self

    def read(self, size: int = -1) -> bytes:
        raise KeyboardInterrupt


def test_an_interrupt_has_the_shells_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends without a traceback."""
    monkeypatch.setattr(sys, "stdin", _InterruptedInput())
    assert run(capsys, "explain") == (130, "", "")


def test_the_script_is_installed() -> None:
    """Where the package is installed, `hbmwatch` is this command."""
    scripts = importlib.metadata.entry_points(group="console_scripts", name="hbmwatch")
    if not scripts:
        pytest.skip("hbmwatch is not installed, only on the path")
    assert {script.load() for script in scripts} == {main}


@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("HBMWATCH_REMOTE_SECONDS", ["peak", "memory://run"]),
        ("HBMWATCH_REMOTE_SECONDS", ["diff", "memory://run", "memory://run"]),
        ("HBMWATCH_REMOTE_SECONDS", ["show", "memory://run"]),
        ("HBMWATCH_REMOTE_SECONDS", ["fold", "memory://run"]),
        ("HBMWATCH_REMOTE_SECONDS", ["explain", "memory://run"]),
        ("HBMWATCH_DISABLE", ["run", "train.py"]),
    ],
)
def test_a_variable_that_cannot_be_used_is_a_sentence(
    variable: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the environment, with exit status 3."""
    monkeypatch.setenv(variable, "soon")

    status, out, err = run(capsys, *arguments)

    assert (status, out, len(err.splitlines())) == (3, "", 1)
    assert err.startswith(f"hbmwatch: {variable}='soon' is ")
