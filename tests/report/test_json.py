"""Reports come back whole from what was stored of them, and group by what failed."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbmwatch import (
    DeviceMemory,
    Finding,
    LiveArrays,
    OomMessage,
    OomReport,
    PeakOp,
    PeakSummary,
    parse_oom,
)

_TEXT = st.text(max_size=12)
_BYTES = st.integers(0, 2**50)
_MAYBE_BYTES = st.none() | _BYTES
_TOTALS = st.dictionaries(_TEXT, _BYTES, max_size=3)
_SPECIAL = {
    "str": _TEXT,
    "int": _BYTES,
    "int | None": _MAYBE_BYTES,
    "str | None": st.none() | _TEXT,
    "tuple[str, ...]": st.lists(_TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(_BYTES, max_size=3).map(tuple),
    "Mapping[str, int]": _TOTALS,
    "Mapping[str, str]": st.dictionaries(_TEXT, _TEXT, max_size=3),
    "Mapping[str, Mapping[str, int]]": st.dictionaries(_TEXT, _TOTALS, max_size=2),
    "Kind": st.sampled_from(("parameter", "output", "temporary", "constant", "thread-local", "")),
    "Platform | None": st.sampled_from((None, "tpu", "gpu", "cpu")),
    "Phase | None": st.sampled_from((None, "compile", "run")),
    "Certainty": st.sampled_from(("measured", "derived", "hint")),
    "Literal['allocator', 'driver', 'host'] | None": st.sampled_from((None, "driver", "host")),
    "npt.NDArray[np.int64]": st.lists(_BYTES, max_size=4).map(
        lambda sizes: np.asarray(sizes, dtype=np.int64)
    ),
}


def _records(record: type[Any]) -> st.SearchStrategy[Any]:
    """Any values of a record, by the annotations of its fields."""
    fields = {field.name: _SPECIAL[str(field.type)] for field in dataclasses.fields(record)}
    return st.builds(record, **fields)


for _record in (PeakOp, LiveArrays, Finding, OomMessage, PeakSummary, DeviceMemory, OomReport):
    _SPECIAL[_record.__name__] = _records(_record)
    _SPECIAL[f"{_record.__name__} | None"] = st.none() | _SPECIAL[_record.__name__]
    _several = st.lists(_SPECIAL[_record.__name__], max_size=2).map(tuple)
    _SPECIAL[f"tuple[{_record.__name__}, ...]"] = _several

_SIZED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {}."


@given(_SPECIAL["OomReport"])
def test_a_report_comes_back_whole_from_json(report: OomReport) -> None:
    """to_dict() through JSON and from_dict() give an equal report, the array read-only."""
    back = OomReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert back == report
    if report.summary is not None and back.summary is not None:
        assert [op.role for op in back.summary.ops] == [op.role for op in report.summary.ops]
        assert not back.summary.heap_bytes.flags.writeable


@given(_SPECIAL["OomReport"])
def test_scalars_have_names_that_every_logger_takes(report: OomReport) -> None:
    """Whatever paths a report holds, MLflow, TensorBoard and the others take the names."""
    names = report.scalars().keys()
    assert [name for name in names if not re.fullmatch(r"[A-Za-z0-9_./-]{1,250}", name)] == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("params['layers'][0]['w']", "params.layers.0.w"),
        ("state.opt_state[0].mu['w']", "state.opt_state.0.mu.w"),
        ("optimizer state", "optimizer_state"),
        ("(temporary)", "temporary"),
        ("\N{GREEK SMALL LETTER THETA}", "other"),
    ],
)
def test_paths_read_well_as_metrics(path: str, name: str) -> None:
    """Subscripts become dots, all else that is no letter an underscore."""
    report = OomReport(OomMessage("x"), rollup={"path": {path: 8}})
    assert report.scalars() == {f"hbm/rollup/path/{name}_bytes": 8}


def test_paths_that_get_one_name_are_summed() -> None:
    """No bytes are lost where two paths differ only in what a name cannot hold."""
    report = OomReport(OomMessage("x"), rollup={"path": {"a[0]": 3, "a['0']": 5}})
    assert report.scalars() == {"hbm/rollup/path/a.0_bytes": 8}


def test_a_field_of_the_future_is_passed_over() -> None:
    """What this version does not know in a record of its schema is left out."""
    report = OomReport(OomMessage("x"), function="step")
    assert OomReport.from_dict({**report.to_dict(), "mood": "bad"}) == report


_GOOD: dict[str, Any] = OomReport(OomMessage("x")).to_dict()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, 'no report of schema 1: "schema" is None'),
        ({**_GOOD, "schema": 2}, 'no report of schema 1: "schema" is 2'),
        ([], 'no report of schema 1: "schema" is None'),
        ({"schema": 1}, "report is incomplete"),
        ({**_GOOD, "message": "x"}, "report.message is 'x', not a mapping"),
        ({**_GOOD, "process_index": "many"}, "report.process_index is 'many', not a int"),
        ({**_GOOD, "process_index": True}, "report.process_index is True, not a int"),
        (
            {**_GOOD, "process_index": 10**64},
            "report.process_index has a number of more than 64 digits",
        ),
        ({**_GOOD, "breakdown": {"total": -(10**64)}}, "report.breakdown has a number of more"),
        ({**_GOOD, "notes": "x"}, "report.notes is 'x', not a list"),
        ({**_GOOD, "notes": [1]}, "report.notes holds 1"),
        ({**_GOOD, "breakdown": {"total": "x"}}, "report.breakdown holds 'x'"),
        ({**_GOOD, "findings": [3]}, "report.findings[0] is 3, not a mapping"),
    ],
)
def test_what_is_no_report_is_refused(values: Any, said: str) -> None:
    """A ValueError says where the values stop being a report."""
    with pytest.raises(ValueError) as refused:
        OomReport.from_dict(values)
    assert said in str(refused.value)


def test_a_heap_that_no_array_holds_is_refused() -> None:
    """Sizes of more than 64 bits are no sizes."""
    values = _failure("1.00GiB", "f32[8]", 1).to_dict()
    values["summary"]["heap_bytes"] = [2**64]
    with pytest.raises(ValueError, match="heap_bytes holds an int of more than 64 bits"):
        OomReport.from_dict(values)


def _failure(size: str, shape: str, number: int) -> OomReport:
    message = parse_oom(_SIZED.format(size))
    assert message is not None
    op = PeakOp(f"fusion.{number}", "fusion", "jit(step)/dot_general", shape, number * 2**20)
    heap = np.asarray([op.size_bytes], dtype=np.int64)
    sizes = (op.size_bytes, 0, 0, heap, 0, 0, 0, op.size_bytes, op.size_bytes, 0)
    summary = PeakSummary(f"jit_step.{number}", number, "hbm", *sizes, ops=(op,))
    return OomReport(message, summary)


def test_sizes_shapes_and_numbers_do_not_change_the_fingerprint() -> None:
    """Failures of one function that differ in sizes, shapes and numbering are one group."""
    small, large = _failure("6.94GiB", "f32[8,8]", 3), _failure("93.1GiB", "f32[9,8,8]", 412)
    assert small.fingerprint() == large.fingerprint()
    named = OomReport(small.message, function="step")
    assert named.fingerprint() == small.fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        OomReport(OomMessage("", "gpu", "run", memory_space="hbm"), function="evaluate"),
        OomReport(OomMessage("", "gpu", "run", memory_space="host"), function="step"),
        OomReport(OomMessage("", "tpu", "run", memory_space="hbm"), function="step"),
        OomReport(OomMessage("", "gpu", "compile", memory_space="hbm"), function="step"),
        OomReport(OomMessage("", "gpu", "run", memory_space="hbm", pool="driver"), function="step"),
    ],
)
def test_another_failure_has_another_fingerprint(other: OomReport) -> None:
    """Another function, memory, platform or phase is another group."""
    one = OomReport(OomMessage("", "gpu", "run", memory_space="hbm"), function="step")
    assert other.fingerprint() != one.fingerprint()
