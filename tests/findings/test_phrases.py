"""Words that several findings use."""

from __future__ import annotations

from hbmwatch._findings.phrases import top_lines
from tests.hlo import Hlo


def test_a_long_name_of_a_file_is_shortened_alone() -> None:
    """Its line number and the other places stay readable."""
    hlo = Hlo()
    files = {"train.py": 512, "a" * 50 + "b" * 50 + ".py": 1024}
    made = [
        hlo.add("sort", dims=(rows, 512), metadata={"source_file": name, "source_line": 7})
        for name, rows in files.items()
    ]
    (long, short) = top_lines(hlo.facts(tuple(made)).live).split(", ")

    assert short == "train.py:7"
    assert (len(long), long[:3], long[-8:]) == (60, "aaa", "bbb.py:7")
