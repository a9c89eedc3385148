"""The README's snippets run, its commands set up what they need, and its report is a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import why_not

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.skipif(why_not("tpu") is not None, reason=str(why_not("tpu")))
def test_the_snippets_run(tmp_path: Path) -> None:
    """All Python blocks, one after the other, in an interpreter of their own."""
    code = "\n".join(blocks("python")).replace("/tmp/", f"{tmp_path}/")
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    loss, summary = ran.stdout.splitlines()[:2]
    assert float(loss) > 0
    assert summary.startswith("Peak of jit_train_step: ")


def test_the_report_is_the_golden_one() -> None:
    """The report that the README shows is the golden text of a real one."""
    golden = (ROOT / "tests" / "golden" / "train.txt").read_text()
    report = golden.split("\n\n")[1] + "\n"
    (shown,) = blocks("text")
    if os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1":
        (ROOT / "README.md").write_text(README.replace(shown, report))
    else:
        assert shown == report


def test_two_commands_show_a_report_and_run_the_tests() -> None:
    """Each is one line that makes its own environment; .ci/run finds the second by its end."""
    demo, tests = blocks("sh")[1].splitlines()

    setup = r"python3\.11 -m venv \.venv && \.venv/bin/pip install -q "
    assert re.fullmatch(setup + r"\. && \.venv/bin/python -m hbmwatch demo", demo)
    assert re.fullmatch(setup + r"-e '\.\[test\]' && \.venv/bin/python -m pytest -q", tests)
    assert re.findall(".*-m pytest -q$", README, re.MULTILINE) == [tests]


def test_links_point_somewhere() -> None:
    """Every relative link of the README is a file of the project."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)

    assert [link for link in links if not (ROOT / link).exists()] == []
