"""Completion of the command's words, by TAB in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import on_a_terminal, run

pytest.importorskip("shtab")

# How each shell starts with no file of its user, and how it prints its arguments one by one.
SHELLS = {
    "bash": ("bash --norc --noprofile", "hbmwatch() { printf '<%s>' \"$@\"; echo; }"),
    "zsh": ("zsh -f", "autoload -U compinit; compinit -D; hbmwatch() { printf '<%s>' $@; echo; }"),
    "fish": ("fish --no-config", "function hbmwatch; printf '<%s>' $argv; echo; end"),
}
READY = "printf 'rea%s\\n' dy"
TYPED = {
    "expl\t": "<explain>",
    "explain tra\t": "<explain><train.log>",
    "show run\t": "<show><runs",
    "peak --memory-space vm\t": "<peak><--memory-space><vmem>",
    "diff --col\tneve\t": "<diff><--color><never>",
    "peak xprof --on v6\t": "<peak><xprof><--on><v6e>",
    "fits step:f --on h20\t": "<fits><step:f><--on><h200>",
    "demo --on tp\t": "<demo><--on><tpu7x>",
    "show ./xprof --run 2026_0\t": "<show><./xprof><--run><2026_03_01>",
    "peak ~/xprof --run ru\t": "/xprof><--run><run-b>",
    "peak --memory-space '[' ./xprof --run ru\t": "<[><./xprof><--run><run-b>",
    "peak --memory-space '*' ./xprof --run ru\t": "<*><./xprof><--run><run-b>",
    "peak ./hostile --run o\t": "<peak><./hostile><--run><ok>",
}
# Names of runs that a shell would expand, or that are not one word.
HOSTILE = ("$(touch${IFS}pwned)", "`touch${IFS}pwned`", "o;touch pwned", "o\nk", "o*", "o'k", "o~")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: str,
) -> None:
    """Commands, options, values, files, folders, devices and runs; no name is ever expanded."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    status, script, _ = run(capsys, "--print-completion", shell)
    assert status == 0
    (tmp_path / "script").write_text(script)
    (tmp_path / "train.log").touch()
    (tmp_path / "runs").mkdir()
    runs = {"xprof": ("2026_03_01", "run-b"), "other": ("run-a",), "hostile": (*HOSTILE, "ok")}
    for folder, names in runs.items():
        for name in names:
            (tmp_path / folder / "plugins" / "profile" / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    command, echo = SHELLS[shell]
    source = "source ./script" if shell == "fish" else 'eval "$(cat ./script)"'
    with subprocess.Popen(
        on_a_terminal(command, 200), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as terminal:
        try:
            type_and_check(terminal, echo, source)
        finally:
            terminal.kill()  # which hangs up on the shell
    assert not (tmp_path / "pwned").exists()


def type_and_check(terminal: subprocess.Popen[bytes], *before: str) -> None:
    """Type lines, and then each of the words to complete."""
    assert terminal.stdin is not None and terminal.stdout is not None
    typing, shown = terminal.stdin.fileno(), terminal.stdout.fileno()
    os.write(typing, "".join(f"{line}\r" for line in (*before, READY)).encode())
    wait_for("ready", shown)
    for typed, completed in TYPED.items():
        os.write(typing, f"hbmwatch {typed}\r".encode())
        wait_for(completed, shown)


def wait_for(text: str, shown: int) -> None:
    """Read what a terminal shows up to a text."""
    seen = ""
    while text not in seen:
        more = os.read(shown, 4096).decode(errors="replace")
        assert more, seen
        seen += more


def test_without_shtab_the_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert run(capsys, "--print-completion", "bash") == (
        3,
        "",
        "hbmwatch: completion needs the package shtab: pip install 'hbmwatch[completion]'\n",
    )
