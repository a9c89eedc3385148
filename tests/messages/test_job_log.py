"""What the log of one process of a job says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from hbmwatch import OomMessage, OomReport, Process
from hbmwatch._messages.job_log import JobLog, read_job_log

ERROR = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes."
LOST = "Read error: Connection reset by peer"
FAILED = Process(
    17, 64, "gke-pool-1.europe", 4711, "2026-01-31T08:15:02.125Z", (68, 69, 70, 71), (0, 1, 2, 3)
)


def blocks(text: str) -> Iterator[bytes]:
    """A log in blocks."""
    data = text.encode()
    return (data[place : place + 1000] for place in range(0, len(data), 1000))


def report(process: Process | None, function: str = "train_step") -> str:
    """The text of a report, as a logger with a prefix writes it."""
    text = str(OomReport(OomMessage(ERROR, platform="gpu"), function=function, process=process))
    return "".join(f"2026-01-31 08:15:03,000 ERROR {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "process",
    [
        FAILED,
        dataclasses.replace(FAILED, slice_index=3, device_ids=(8, 10, 12), index=0, count=2),
        dataclasses.replace(FAILED, device_ids=(), time=""),
        Process(1, 2),
    ],
)
def test_a_report_names_its_process(process: Process) -> None:
    """Its index, the count, the host, the slice and the time; a report's text has no more."""
    log = read_job_log(blocks(f"step 7\n{report(process)}step 8\n"))

    stated = dataclasses.replace(process, pid=0, device_ids=(), local_device_ids=())
    assert (log.process, log.function) == (stated, "train_step")


def test_what_is_no_process_of_a_job() -> None:
    """A report of a single process, and an error without a report."""
    alone = read_job_log(blocks(report(Process(0, 1, "host"), function="")))
    bare = read_job_log(blocks(f"process 3 of 4 starts\n{ERROR.format(8)}\n"))

    assert (alone.process, alone.function) == (None, "")
    assert (bare.process, bare.function) == (None, "")
    assert alone.oom is not None and bare.oom is not None


def test_the_last_error_counts() -> None:
    """In a log of any length."""
    steps = "step\n" * 500_000
    log = read_job_log(blocks(f"{ERROR.format(8)}\n{steps}{ERROR.format(16)}\n"))

    assert log.oom is not None and log.oom.requested_bytes == 16


def test_a_log_without_an_error() -> None:
    """What its end says of a lost process, and its last line; not what ended well long ago."""
    later = "step\n" * 100_000

    assert read_job_log(blocks(f"{later}{LOST}\n\n")) == JobLog(
        lost="connection reset by peer", last_line=LOST
    )
    assert read_job_log(blocks(f"{LOST}\n{later}")) == JobLog(last_line="step")
    assert read_job_log(blocks("")) == JobLog()
