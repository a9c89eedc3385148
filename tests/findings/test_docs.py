"""docs/findings.md lists every finding, with what `verify` can try."""

from __future__ import annotations

import re
from pathlib import Path

from hbmwatch._findings.rank import ADVICE
from tests.oom_programs import CASES

TEXT = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)


def test_every_finding_is_listed_once() -> None:
    """The table has a row for each slug, in alphabetical order, and no other."""
    assert ROW.findall(TEXT) == sorted(ADVICE)


def test_the_programs_that_it_names_exist() -> None:
    """The table of differences names programs of tests/oom_programs."""
    table = TEXT.partition("## Where this differs")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    programs = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[-1])}

    assert programs <= {case.name for case in CASES}
    assert len(programs) > 10


def test_every_change_of_a_finding_is_listed() -> None:
    """Under "Trying a remedy"."""
    section = TEXT.partition("## Trying a remedy")[2]

    assert {a.change for a in ADVICE.values() if f'"{a.change}"' not in section} == {""}
