"""The records as values: equal, hashable, and stored without loss."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from hbmwatch import OomMessage, OomReport, load_peak_summary
from hbmwatch._xla.terms import MEMORY_SPACES

MESSAGE = OomMessage(
    "out of memory", totals={"program": 5}, resolution_bytes={"used_bytes": 103}, used_bytes=7
)
REPORT = OomReport(
    MESSAGE,
    breakdown={"arguments": 3},
    rollup={"role": {"parameters": 3}},
    versions={"jax": "0.10.2"},
    notes=("a note",),
)


@pytest.mark.parametrize("record", [MESSAGE, REPORT], ids=["message", "report"])
def test_a_record_with_mappings_is_hashable(record: Any) -> None:
    """Equal records have one hash, also after a pickle, a copy and a replace of nothing."""
    same = [
        pickle.loads(pickle.dumps(record)),
        copy.deepcopy(record),
        dataclasses.replace(record),
    ]

    assert same == [record] * 3
    assert {hash(other) for other in same} == {hash(record)}
    assert len({record, *same}) == 1


def test_mappings_count_for_equality() -> None:
    """Records that differ in a mapping alone differ, although their hashes are equal."""
    message = dataclasses.replace(MESSAGE, totals={"program": 6})
    report = dataclasses.replace(REPORT, breakdown={"arguments": 4})

    assert message != MESSAGE and report != REPORT
    assert {MESSAGE: 1, message: 2}[message] == 2
    assert {REPORT: 1, report: 2}[report] == 2


def test_the_memory_spaces_that_can_be_asked_for_are_documented() -> None:
    """load_peak_summary's docstring lists each of them."""
    documented = load_peak_summary.__doc__ or ""

    assert [space for space in MEMORY_SPACES if f'"{space}"' not in documented] == []
