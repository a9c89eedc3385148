"""`hbmwatch diff`: profiles and saved reports, compared as text and as JSON."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.cli.support import run


@pytest.mark.slow
def test_a_saved_report_is_compared_with_a_profile(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """What `peak --json` saved equals its profile, and another module differs."""
    saved = tmp_path / "before.json"
    saved.write_text(run(capsys, "peak", str(profile), "--json")[1])
    same = run(capsys, "diff", str(saved), str(profile))
    assert same[0] == 0
    assert same[1].splitlines()[1:] == ["  no changes"]
    status, out, _ = run(capsys, "diff", str(saved), str(profile), "--module", "jit_double")
    assert (status, out.splitlines()[0]) == (
        0,
        "Memory of jit_triple, jit_double: 34.3 MiB -> 781 KiB (-33.6 MiB)",
    )


@pytest.mark.parametrize("piped", [False, True], ids=["a name without .json", "a pipe"])
def test_a_saved_report_is_known_by_its_text(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path, piped: bool
) -> None:
    """The name need not end in .json, and the shell's `<(...)` works too."""
    saved = tmp_path / "before"
    text = run(capsys, "peak", str(profile), "--json")[1]
    if piped:
        os.mkfifo(saved)
        writer = threading.Thread(target=saved.write_text, args=(text,))
        writer.start()
    else:
        saved.write_text(text)
    status, out, _ = run(capsys, "diff", str(saved), str(profile))
    if piped:
        writer.join(10)
    assert (status, out.splitlines()[1:]) == (0, ["  no changes"])


def test_json_has_both_totals_and_the_changes(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    """Between a profile and itself nothing changed."""
    status, out, _ = run(capsys, "diff", str(profile), str(profile), "--json")
    values = json.loads(out)
    assert (status, values["changes"], values["before"]) == (0, [], values["after"])


def test_changes_are_grouped_as_asked(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """The text, the JSON and the page begin with the same groups."""
    saved = tmp_path / "double.json"
    saved.write_text(run(capsys, "peak", str(profile), "--module", "jit_double", "--json")[1])
    page = tmp_path / "diff.html"
    command = ("diff", str(saved), str(profile), "--by", "role", "--html", str(page))
    out = run(capsys, *command)[1]
    changes = json.loads(run(capsys, *command, "--json")[1])["changes"]

    assert "  Changes at the peak, by role" in out.splitlines()
    assert changes[0]["name"] in {"outputs", "other temporaries"} and changes[0]["kind"] == ""
    assert '"by":"role"' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limit", "status", "verdict"),
    [
        ("40MiB", 0, "The first program is within the limit of 40 MiB, and so is the second."),
        (
            "1MiB",
            1,
            "The first program is 33.3 MiB over the limit of 1 MiB; the change frees nothing: the "
            "second is still 33.3 MiB over.",
        ),
    ],
)
def test_a_limit_decides_and_a_page_is_written(
    capsys: pytest.CaptureFixture[str],
    profile: Path,
    tmp_path: Path,
    limit: str,
    status: int,
    verdict: str,
) -> None:
    """The exit status is 1 if the second program does not fit, as that of `peak`."""
    page = tmp_path / "diff.html"
    command = ("diff", str(profile), str(profile), "--limit", limit, "--html", str(page))
    ended, out, _ = run(capsys, *command)

    assert ended == status
    assert verdict in " ".join(out.split())
    assert verdict in page.read_text(encoding="utf-8")
