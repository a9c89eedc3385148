"""The reports of many processes as one."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from hbmwatch import (
    DeviceMemory,
    FoldedReport,
    OomMessage,
    OomReport,
    Process,
    fold_reports,
)
from hbmwatch._records.folded import Consequence, Figure, FoldedGroup, OtherLog, Outlier
from hbmwatch._records.look import Look
from hbmwatch._records.report import LiveArrays
from hbmwatch._report.fold_text import folded_text

GIB, MIB = 2**30, 2**20
LIMIT = 16 * GIB


def report(index: int, count: int = 4, free: int = GIB, **changes: object) -> OomReport:
    """A report of a run-time failure in one process of a job."""
    process = Process(index, count, host=f"host-{index}", time=f"2026-01-31T08:15:{index:02}.000Z")
    made = OomReport(
        OomMessage("text", platform="tpu", phase="run", requested_bytes=2 * GIB, limit_bytes=LIMIT),
        device=DeviceMemory("TPU v5e", count, limit_bytes=LIMIT, in_use_bytes=LIMIT - free),
        function="train_step",
        process_index=index,
        process=process,
        versions={"jax": "0.10.2"},
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def live(report: OomReport, count: int) -> OomReport:
    """The report with live arrays."""
    assert report.device is not None
    groups = (LiveArrays((8,), "float32", count, 32 * count),) if count else ()
    return dataclasses.replace(report, device=dataclasses.replace(report.device, live=groups))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_text_is_as_wide_as_asked_for(width: int) -> None:
    """With the same words at each width, whatever is broken where."""
    reports = [report(index, free=GIB - index * 300 * MIB) for index in range(4)]
    lost = [Consequence("host-5.log", "the coordination service lost a task " * 5)]
    folded = fold_reports(reports, lost)
    text = folded_text(folded, Look(width))

    assert max(map(len, text.splitlines())) <= width
    assert text.split() == str(folded).split()


def test_what_is_alike_is_said_once() -> None:
    """Four equal reports are one line, and the earliest is named."""
    folded = fold_reports(report(index) for index in (2, 0, 3, 1))

    assert folded == FoldedReport(
        process_count=4,
        groups=(
            FoldedGroup(
                headline="train_step ran out of HBM at run time on TPU v5e: requested 2.00 GiB; "
                "limit 16.00 GiB",
                processes=tuple(report(index).process or Process() for index in range(4)),
                free_bytes=(GIB,) * 4,
                figures=(),
                outliers=(),
                typical=1,
            ),
        ),
        reports=(report(0),),
        first=report(0).process,
        lead_seconds=1.0,
    )


def test_what_differs_is_said_by_process() -> None:
    """A process with less free memory and more live arrays stands out; small changes do not."""
    reports = [report(index, free=GIB + index * MIB) for index in range(4)]
    reports.append(live(report(4, free=GIB - 300 * MIB, versions={"jax": "0.9.0"}), 2))

    (group,) = fold_reports(reports).groups

    assert group.outliers == (
        Outlier(
            Process(4, 4, host="host-4", time="2026-01-31T08:15:04.000Z"),
            {"in use": 301 * MIB, "free": -301 * MIB, "live arrays": 2},
            ("jax 0.9.0 instead of 0.10.2",),
        ),
    )
    assert [(f.name, f.least, f.least_process.index, f.most) for f in group.figures] == [
        ("in use", LIMIT - GIB - 3 * MIB, 3, LIMIT - GIB + 300 * MIB),
        ("free", GIB - 300 * MIB, 4, GIB + 3 * MIB),
        ("live arrays' bytes", 0, 0, 64),
        ("live arrays", 0, 0, 2),
    ]
    assert group.figures[1] == Figure(
        "free", "bytes", GIB + MIB, GIB - 300 * MIB, reports[4].process or Process(),
        GIB + 3 * MIB, reports[3].process or Process(),
    )  # fmt: skip


def test_processes_that_differ_in_the_same_way_are_named_together() -> None:
    """By their indices; what is left out is counted."""
    reports = [report(index, 40) for index in range(40)]
    for index in (3, 4, 5, 9):
        reports[index] = dataclasses.replace(reports[index], versions={"jax": "0.9.0"})
    for index in range(20, 30):
        reports[index] = live(reports[index], index)

    lines = str(fold_reports(reports)).splitlines()

    assert "    4 processes (3-5, 9): jax 0.9.0 instead of 0.10.2" in lines
    assert "    process 20 (host-20): 20 live arrays more" in lines
    assert "    3 more processes differ" in lines


TEXT = """\
hbmwatch: 3 of 8 processes ran out of device memory
  2 processes, all alike: train_step ran out of HBM at run time on TPU v5e: requested 2.00 GiB;
     limit 16.00 GiB
  process 5 (host-5): eval_step ran out of HBM at run time on TPU v5e: requested 2.00 GiB; limit
     16.00 GiB
  first: unknown; process 0 (host-0) has the earliest time, 2026-01-31T08:15:00.000Z, but it is
     only 1.000 s before the next, and the clocks of two hosts can differ by that much.
  1 process did not run out of memory, but lost another process:
    rank3.log: connection reset by peer
  5 processes logged neither an OOM nor a lost process:
    rank4.log: last line: Killed
    rank2.log: it is empty
    rank6.log: it is empty
    rank7.log: it is empty
    and 1 more
  note: 1 older report of these processes is left out."""


def test_the_text() -> None:
    """Groups, who was first, what else the logs say."""
    old = dataclasses.replace(report(1, 8).process or Process(), time="2026-01-30T00:00:00.000Z")
    reports = [
        report(0, 8), report(1, 8, process=old), report(1, 8), report(5, 8, function="eval_step"),
    ]  # fmt: skip

    folded = fold_reports(
        reports,
        [Consequence("rank3.log", "connection reset by peer")],
        [OtherLog("rank4.log", "Killed"), *[OtherLog(f"rank{n}.log", "") for n in (2, 6, 7, 8)]],
    )

    assert str(folded) == TEXT


def test_processes_without_a_report_are_named() -> None:
    """By the count that the others know."""
    folded = fold_reports(report(index, 9) for index in (0, 1, 4))

    assert folded.absent == (2, 3, 5, 6, 7, 8)
    assert "  no report of: 6 processes 2-3, 5-8" in str(folded).splitlines()


def test_processes_with_a_log_are_not_absent() -> None:
    """Where each log tells its process."""
    reports = [report(index, 6) for index in (0, 1)]
    lost = [Consequence("rank3.log", "connection reset by peer", 3)]

    assert fold_reports(reports, lost, [OtherLog("rank5.log", "", 5)]).absent == (2, 4)
    assert fold_reports(reports, lost, [OtherLog("some.log", "")]).absent == ()


def test_a_lead_beyond_the_clocks_skew_is_a_fact() -> None:
    """Two hosts that are a minute apart, and two processes of one host."""
    late = dataclasses.replace(report(1, 2).process or Process(), time="2026-01-31T08:16:00.000Z")
    near = dataclasses.replace(report(1, 2).process or Process(), host="host-0")

    far_apart = str(fold_reports([report(0, 2), report(1, 2, process=late)]))
    on_one_host = str(fold_reports([report(0, 2), report(1, 2, process=near)]))

    first = "  first: process 0 (host-0) at 2026-01-31T08:15:00.000Z, "
    assert f"{first}60.000 s before the next, by" in far_apart
    assert f"{first}1.000 s before the next" in on_one_host


def test_old_reports_without_a_process_fold_too() -> None:
    """They are known by their index."""
    old = [report(index, process=None) for index in range(2)]

    folded = fold_reports(old)

    assert [process.index for process in folded.processes] == [0, 1]
    assert (folded.first, folded.absent) == (None, ())


def test_nothing_to_fold() -> None:
    """Is an error."""
    with pytest.raises(ValueError, match="no reports"):
        fold_reports([])


def test_as_json() -> None:
    """All fields, through JSON."""
    folded = fold_reports(report(index) for index in range(4))

    values = json.loads(json.dumps(folded.to_dict()))

    assert values["process_count"] == 4
    assert OomReport.from_dict(values["reports"][0]) == folded.reports[0]


class _Shapes(HTMLParser):
    """The bars of each class, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "path":
            self.bars[values["class"] or ""] = (values["d"] or "").count("M")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_a_bar_for_each_process() -> None:
    """Those that stand out have a band and another color, and foreign text is text."""
    reports = [report(index, 10) for index in range(9)]
    reports.append(report(9, 10, free=2 * GIB, function="train_step"))
    reports = [dataclasses.replace(r, function="<b>step</b>") for r in reports]
    shapes = _Shapes()

    folded = fold_reports(reports)
    shapes.feed(folded.to_html())

    assert shapes.bars == {"band": 1, "alike": 9, "outlier": 1}
    assert str(folded) in shapes.text
    assert "<b>" not in folded.to_html()
