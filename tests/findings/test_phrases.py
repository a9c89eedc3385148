"""Words that several findings use."""

from __future__ import annotations

import pytest

from hbmwatch._findings.phrases import either, largest_paths, top_lines
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


@pytest.mark.parametrize(("rows", "line"), [(1024, "forward.py:1"), (1025, "gradient.py:2")])
def test_the_line_of_the_forward_pass_is_named(rows: int, line: str) -> None:
    """What the backward pass makes of it follows from that line, and counts half."""
    hlo = Hlo()
    places = {"forward.py": ("jvp()", 512, 1), "gradient.py": ("transpose(jvp())", rows, 2)}
    made = [
        hlo.add(
            "sort",
            dims=(size, 512),
            metadata={"op_name": f"jit(f)/{name}/mul", "source_file": file, "source_line": number},
        )
        for file, (name, size, number) in places.items()
    ]

    assert top_lines(hlo.facts(tuple(made)).live, 1).startswith(line)


@pytest.mark.parametrize(
    ("choices", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), ([*"abc"], "a, b, or c")]
)
def test_choices_are_joined(choices: list[str], text: str) -> None:
    """As a sentence lists them."""
    assert either(choices) == text


def test_leaves_of_one_path_count_together() -> None:
    """The largest first; of equal ones, the first."""
    hlo = Hlo()
    sizes = {"a['x']": 1, "b['x'][0]": 2, "b['x'][1]": 2, "c": 3, "d": 3}
    for path, size in sizes.items():
        hlo.parameter(size, 512, path=path)
    arguments = hlo.facts().arguments

    assert largest_paths(arguments) == ["b['x']", "c", "d", "a['x']"]
    assert largest_paths(arguments, lambda path: path[0]) == ["b", "c", "d", "a"]
