"""The recipes of docs/logging.md, run against the real packages, and what they wrote."""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import HbmOomError, OomReport

PAGE = Path(__file__).parents[2] / "docs" / "logging.md"
NEEDS = {
    "The failure": (),
    "Standard library, as JSON lines": (),
    "structlog": ("structlog",),
    "TensorBoard": ("tensorboardX",),
    "OpenTelemetry": ("opentelemetry.sdk",),
    "A file to look at later": (),
}


def recipes() -> dict[str, str]:
    """The Python block of each section; the one before the first section is the failure."""
    head, *sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {"The failure": head, **dict(section.split("\n", 1) for section in sections)}
    block = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return {name: "\n".join(block.findall(text)) for name, text in named.items()}


@pytest.fixture(scope="module")
def failure() -> dict[str, Any]:
    """The names that the page's failure leaves: `oom` is one of them."""
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(recipes()["The failure"], str(PAGE), "exec"), names)
    return names


@pytest.fixture
def run(
    failure: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Runs a recipe in an empty folder: `run["structlog"]` are the names that it leaves."""
    monkeypatch.chdir(tmp_path)

    class Recipes(dict[str, Any]):
        def __missing__(self, name: str) -> dict[str, Any]:
            for package in NEEDS[name]:
                pytest.importorskip(package)
            names = dict(failure)
            exec(compile(recipes()[name], str(PAGE), "exec"), names)
            return names

    yield Recipes()
    for handler in logging.getLogger("train").handlers[:]:
        logging.getLogger("train").removeHandler(handler)
        handler.close()


def test_every_recipe_is_run() -> None:
    """No section of the page is without a test below."""
    assert recipes().keys() == NEEDS.keys()


def test_the_failure_is_one(failure: dict[str, Any]) -> None:
    """The page's step runs out of memory on any machine, with a report that has a peak."""
    oom = failure["oom"]
    assert isinstance(oom, HbmOomError)
    assert oom.summary is not None and oom.summary.peak_bytes >= 2**50


def test_stdlib_writes_json_lines(run: dict[str, Any], failure: dict[str, Any]) -> None:
    """One line of JSON: the text, the numbers, the fingerprint."""
    run["Standard library, as JSON lines"]
    report = failure["oom"].report
    (line,) = Path("train.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "level": "ERROR",
        "logger": "train",
        "message": str(report),
        "fingerprint": report.fingerprint(),
        "findings": [finding.slug for finding in report.findings],
        **report.scalars(),
    }


def test_structlog_binds_the_numbers(run: dict[str, Any], failure: dict[str, Any]) -> None:
    """The event has the scalars as its keys."""
    run["structlog"]["structlog"].reset_defaults()
    report = failure["oom"].report
    (line,) = Path("structlog.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "event": "out of device memory",
        "level": "error",
        "function": "train_step",
        "fingerprint": report.fingerprint(),
        "summary": str(report.summary),
        **report.scalars(),
    }


def _tensorboard_events(file: Path) -> Iterator[Any]:
    """The events of a file of TFRecords: length, its checksum, data, its checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_tensorboard_gets_every_scalar(run: dict[str, Any], failure: dict[str, Any]) -> None:
    """Each scalar is there under its own name, at the step; the report is a text."""
    run["TensorBoard"]
    report = failure["oom"].report
    (file,) = Path("runs").glob("events*")
    events = [event for event in _tensorboard_events(file) if event.summary.value]
    values = {value.tag: (event.step, value) for event in events for value in event.summary.value}
    scalars = {tag: v.simple_value for tag, (_, v) in values.items() if v.HasField("simple_value")}
    assert scalars == pytest.approx(report.scalars(), rel=1e-6)
    assert {step for step, _ in values.values()} == {1200}
    (text,) = [v for tag, (_, v) in values.items() if "report" in tag]
    assert text.tensor.string_val[0].decode() == f"<pre>{report}</pre>"


def test_opentelemetry_has_the_exception_and_the_numbers(
    run: dict[str, Any], failure: dict[str, Any]
) -> None:
    """The span is an error, holds the exception, and can be searched by the scalars."""
    names = run["OpenTelemetry"]
    (span,) = names["exporter"].get_finished_spans()
    assert span.status.status_code is names["trace"].StatusCode.ERROR
    assert [event.attributes["exception.type"] for event in span.events] == ["hbmwatch.HbmOomError"]
    report = failure["oom"].report
    attributes = dict(span.attributes)
    assert attributes.pop("hbm.fingerprint") == report.fingerprint()
    assert attributes.keys() == report.scalars().keys()
    assert attributes["hbm/peak/peak_bytes"] == report.summary.peak_bytes


def test_a_file_is_left(run: dict[str, Any]) -> None:
    """The page and the values are there, and the values read back."""
    run["A file to look at later"]
    stored = OomReport.from_dict(json.loads(Path("oom.json").read_text()))
    assert stored.function == "train_step"
    assert "train_step ran out of memory" in Path("oom.html").read_text(encoding="utf-8")
