"""A stored report is read back without loss, and reports are grouped by what failed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbmwatch import (
    DeviceMemory,
    Finding,
    LiveArrays,
    OomMessage,
    OomReport,
    PeakOp,
    PeakSummary,
    Process,
    Transfer,
    parse_oom,
)
from hbmwatch._report.text import headline

_TEXT = st.text(st.characters(), max_size=12)  # lone surrogates, too: JSON can hold them
_BYTES = st.integers(0, 2**50) | st.integers(0, 10**64 - 1)
_MAYBE_BYTES = st.none() | _BYTES
_TOTALS = st.dictionaries(_TEXT, _BYTES, max_size=3)
_SPECIAL = {
    "bool": st.booleans(),
    "str": _TEXT,
    "int": _BYTES,
    "int | None": _MAYBE_BYTES,
    "str | None": st.none() | _TEXT,
    "tuple[str, ...]": st.lists(_TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(_BYTES, max_size=3).map(tuple),
    "tuple[tuple[int, ...], ...]": st.lists(
        st.lists(_BYTES, max_size=2).map(tuple), max_size=2
    ).map(tuple),
    "Mapping[str, int]": _TOTALS,
    "Mapping[str, str]": st.dictionaries(_TEXT, _TEXT, max_size=3),
    "Mapping[str, Mapping[str, int]]": st.dictionaries(_TEXT, _TOTALS, max_size=2),
    "Kind": st.sampled_from(("parameter", "output", "temporary", "constant", "thread-local", "")),
    "Platform | None": st.sampled_from((None, "tpu", "gpu", "cpu")),
    "Phase | None": st.sampled_from((None, "compile", "run")),
    "Certainty": st.sampled_from(("measured", "derived", "hint")),
    "Literal['allocator', 'reservation', 'driver', 'host'] | None": st.sampled_from(
        (None, "driver", "host")
    ),
    "npt.NDArray[np.int64]": st.lists(st.integers(0, 2**63 - 1), max_size=4).map(
        lambda sizes: np.asarray(sizes, dtype=np.int64)
    ),
}


def _records(record: type[Any]) -> st.SearchStrategy[Any]:
    """Any values of a record, by the annotations of its fields."""
    fields = {field.name: _SPECIAL[str(field.type)] for field in dataclasses.fields(record)}
    return st.builds(record, **fields)


for _record in (
    PeakOp,
    LiveArrays,
    Transfer,
    Finding,
    OomMessage,
    PeakSummary,
    DeviceMemory,
    Process,
    OomReport,
):
    _SPECIAL[_record.__name__] = _records(_record)
    _SPECIAL[f"{_record.__name__} | None"] = st.none() | _SPECIAL[_record.__name__]
    _several = st.lists(_SPECIAL[_record.__name__], max_size=2).map(tuple)
    _SPECIAL[f"tuple[{_record.__name__}, ...]"] = _several
    _SPECIAL[f"tuple[{_record.__name__}, ...] | None"] = st.none() | _several

# Large records on a busy machine: the time of a draw says nothing.
any_report = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)

_SIZED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {}."


@pytest.mark.slow
@any_report
@given(_SPECIAL["OomReport"])
def test_a_report_comes_back_whole_from_json(report: OomReport) -> None:
    """to_dict() through JSON and from_dict() give an equal report, the array read-only."""
    back = OomReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert back == report
    if report.summary is not None and back.summary is not None:
        assert [op.role for op in back.summary.ops] == [op.role for op in report.summary.ops]
        assert not back.summary.heap_bytes.flags.writeable


@pytest.mark.slow
@any_report
@given(_SPECIAL["OomReport"])
def test_every_report_that_is_accepted_can_be_shown(report: OomReport) -> None:
    """Text, page, notebook cell, scalars and fingerprint of any stored values, however odd."""
    stored = OomReport.from_dict(json.loads(json.dumps(report.to_dict())))
    shown = f"{stored}\n{stored.text(top=1)}\n{headline(stored)}\n{stored.summary}"

    assert all(line.isprintable() for line in shown.split("\n"))
    assert stored.to_html().encode("utf-8").endswith(b"</html>\n")
    assert stored._repr_html_().encode("utf-8").startswith(b"<div>\n<iframe ")
    assert all(isinstance(value, (int, float)) for value in stored.scalars().values())
    assert re.fullmatch("[0-9a-f]{16}", stored.fingerprint())


def test_a_record_with_words_of_a_later_version_can_be_shown() -> None:
    """Who builds a record with a new kind and a new certainty still reads text and page."""
    kind: Any = "scratch"
    certainty: Any = "estimated"
    op = PeakOp("fusion.1", "fusion", "jit(step)/dot", "f32[8]{0}", 32768, 32768, kind)
    finding = Finding("x", "Do this", "so", "Thus", 5, certainty, "")
    report = OomReport(OomMessage("x", ops=(op,)), findings=(finding,))

    assert "32 KiB  f32[8]  scratch  dot" in str(report)
    assert '"certainty":"estimated"' in report.to_html()


@pytest.mark.slow
@any_report
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
    """Subscripts become dots, and any other run of special characters an underscore."""
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
    ("values", "expected"),
    [
        ({}, 'not a report with schema version 1 ("schema" is None)'),
        ({**_GOOD, "schema": 2}, 'not a report with schema version 1 ("schema" is 2)'),
        ([], 'not a report with schema version 1 ("schema" is None)'),
        ({"schema": 1}, "report is incomplete: it has no message"),
        ({**_GOOD, "message": "x"}, "report.message is 'x', not a mapping"),
        ({**_GOOD, "message": {}}, "report.message is incomplete: it has no text"),
        ({**_GOOD, "process_index": "many"}, "report.process_index is 'many', not an int"),
        ({**_GOOD, "process_index": True}, "report.process_index is True, not an int"),
        ({**_GOOD, "process_index": None}, "report.process_index is None, not an int"),
        ({**_GOOD, "process_index": 10**64}, "report.process_index has more than 64 digits"),
        (
            {**_GOOD, "breakdown": {"total": 10**64}},
            "report.breakdown['total'] has more than 64 digits",
        ),
        ({**_GOOD, "breakdown": {"total": -1}}, "report.breakdown['total'] is below 0"),
        (
            {**_GOOD, "message": {"text": "", "limit_bytes": -1}},
            "report.message.limit_bytes is below 0",
        ),
        ({**_GOOD, "breakdown": {"total": "x"}}, "report.breakdown['total'] is 'x', not an int"),
        ({**_GOOD, "rollup": {"role": 1}}, "report.rollup['role'] is 1, not a mapping"),
        ({**_GOOD, "versions": {1: "x"}}, "a key of report.versions is 1, not a string"),
        ({**_GOOD, "notes": "x"}, "report.notes is 'x', not a list"),
        ({**_GOOD, "notes": ["a", 1]}, "report.notes[1] is 1, not a string"),
        ({**_GOOD, "findings": [3]}, "report.findings[0] is 3, not a mapping"),
        ({**_GOOD, "message": {"text": "", "platform": []}}, "report.message.platform is [], not "),
    ],
)
def test_values_that_are_not_a_report_are_refused(values: Any, expected: str) -> None:
    """A ValueError says which value is wrong, and why."""
    with pytest.raises(ValueError) as refused:
        OomReport.from_dict(values)

    assert str(refused.value).startswith(expected)


def _with_op(**fields: str) -> dict[str, Any]:
    """A report whose message lists one buffer."""
    return {**_GOOD, "message": {"text": "", "ops": [{"instruction": "", **fields}]}}


def _with_certainty(certainty: str) -> dict[str, Any]:
    """A report with one finding."""
    finding = Finding("x", "", "", "", None, "hint", "")
    values = OomReport(OomMessage("x"), findings=(finding,)).to_dict()
    values["findings"][0]["certainty"] = certainty
    return values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            _with_op(kind="scratch"),
            "report.message.ops[0].kind is 'scratch', not one of 'parameter', 'output', "
            "'temporary', 'constant', 'thread-local', ''",
        ),
        (
            _with_certainty("estimated"),
            "report.findings[0].certainty is 'estimated', not one of 'measured', 'derived', 'hint'",
        ),
        (
            {**_GOOD, "message": {"text": "", "platform": "npu"}},
            "report.message.platform is 'npu', not one of 'tpu', 'gpu', 'cpu'",
        ),
        (
            {**_GOOD, "message": {"text": "", "pool": "disk"}},
            "report.message.pool is 'disk', not one of 'allocator', 'reservation', 'driver', "
            "'host'",
        ),
    ],
)
def test_a_word_of_a_later_version_is_refused(values: dict[str, Any], expected: str) -> None:
    """The ValueError names the field and the words that this version knows."""
    with pytest.raises(ValueError) as refused:
        OomReport.from_dict(values)

    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("heap", "expected"),
    [
        ([2**64], "report.summary.heap_bytes has an int of more than 64 bits"),
        ([1, 2.5], "report.summary.heap_bytes has an item that is not an int"),
        ([True], "report.summary.heap_bytes has an item that is not an int"),
        ("x", "report.summary.heap_bytes is 'x', not a list"),
    ],
)
def test_a_heap_that_is_not_an_array_of_sizes_is_refused(heap: Any, expected: str) -> None:
    """The bytes at each program point are ints of 64 bits."""
    values = _failure("1.00GiB", "f32[8]", 1).to_dict()
    values["summary"]["heap_bytes"] = heap
    with pytest.raises(ValueError) as refused:
        OomReport.from_dict(values)

    assert str(refused.value) == expected


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


def _named(name: str) -> OomReport:
    return OomReport(OomMessage("", "gpu", "run", memory_space="hbm"), function=name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("stage1_step", "stage2_step"),
        ("\N{GREEK SMALL LETTER ALPHA}", "\N{GREEK SMALL LETTER BETA}"),
        ("\u8a13\u7df4", "\u8a55\u4fa1"),
        ("stepA", "step_A"),
    ],
)
def test_functions_with_different_names_have_different_fingerprints(one: str, other: str) -> None:
    """Digits inside a name and letters of every alphabet count."""
    assert _named(one).fingerprint() != _named(other).fingerprint()


@pytest.mark.parametrize(
    "module",
    ["jit_step", "jit_step_12", "jit_step.1", "jit_step(12)", "jit_step_1.12(3)", "pmap_step"],
)
def test_numbers_that_a_compiler_appends_do_not_change_the_fingerprint(module: str) -> None:
    """A report of a log has the fingerprint of the report that knows the function."""
    message = OomMessage("", "gpu", "run", memory_space="hbm", module=module)

    assert OomReport(message).fingerprint() == _named("step").fingerprint()


def test_a_lambda_has_the_fingerprint_of_its_module() -> None:
    """JAX replaces the angle brackets of a lambda's name in the name of the module."""
    message = OomMessage("", "gpu", "run", memory_space="hbm", module="jit__lambda_")

    assert OomReport(message).fingerprint() == _named("<lambda>").fingerprint()


def _numbers(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the whole numbers of a report's values are."""
    if isinstance(values, (dict, list)):
        pairs = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in pairs:
            yield from _numbers(value, (*path, key))
    elif type(values) is int and path != ("schema",):
        yield path


def test_no_number_of_a_report_may_be_below_zero() -> None:
    """Sizes, counts and positions: a report with such a number would show nonsense."""
    text = (Path(__file__).parents[1] / "golden" / "train.json").read_text()
    text = json.dumps(OomReport.from_dict(json.loads(text)).to_dict())
    paths = [*_numbers(json.loads(text))]
    assert len(paths) > 50
    for path in paths:
        values = json.loads(text)
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = -1
        with pytest.raises(ValueError, match="below 0"):
            OomReport.from_dict(values)
