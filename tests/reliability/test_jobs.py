"""Jobs of two and of four processes that fail: who reports, what fold says, and how they end."""

from __future__ import annotations

import datetime
import json
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hbmwatch._explain.failure import OOM_EXIT_STATUS
from tests.cli.support import run
from tests.reliability.launcher import Job

pytestmark = pytest.mark.slow

OOM = "fill ran out of memory at run time on CPU: requested 1.00 PiB"


@dataclass(frozen=True)
class Case:
    """One way in which a job fails.

    Attributes:
        when: What ranks do besides their two steps, as the script of the launcher has it.
        loses: The rank that the others lose.
        gets: The signal that this rank gets after its first step; None if it runs out of memory.
    """

    when: Mapping[int, str]
    loses: int
    gets: signal.Signals | None = None

    @property
    def reports(self) -> list[int]:
        """The ranks that run out of memory."""
        return [] if self.gets else sorted(self.when)


ALL = "all run out"
CASES = {
    (2, ALL): Case({0: "last", 1: "after"}, 0),
    (2, "one runs out before a collective"): Case({0: "before"}, 0),
    (2, "one runs out after a collective"): Case({1: "after"}, 1),
    (2, "one is killed"): Case({1: "idle"}, 1, signal.SIGKILL),
    (2, "one is stopped"): Case({0: "idle"}, 0, signal.SIGSTOP),
    (4, ALL): Case({0: "last", 1: "after", 2: "after", 3: "after"}, 0),
    (4, "one runs out before a collective"): Case({3: "before"}, 3),
    (4, "one runs out after a collective"): Case({2: "after"}, 2),
    (4, "one is killed"): Case({0: "idle"}, 0, signal.SIGKILL),
    (4, "one is stopped"): Case({2: "idle"}, 2, signal.SIGSTOP),
}
LOGS = {
    (2, ALL): f"2 processes ran out of device memory 2 processes, all alike: {OOM} first: process "
    "FIRST (HOST) at TIME before the next",
    (2, "one runs out before a collective"): "1 of 2 processes ran out of device memory process 0 "
    f"(HOST): {OOM} 1 process did not run out of memory, but lost another process: rank1.log: LOST",
    (2, "one runs out after a collective"): "1 of 2 processes ran out of device memory process 1 "
    f"(HOST): {OOM} 1 process did not run out of memory, but lost another process: rank0.log: LOST",
    (2, "one is killed"): "0 of 2 processes ran out of device memory 1 process did not run out of "
    "memory, but lost another process: rank0.log: LOST 1 process logged neither an OOM nor a lost "
    "process: rank1.log: last line: step 2.0",
    (2, "one is stopped"): "0 of 2 processes ran out of device memory 1 process did not run out of "
    "memory, but lost another process: rank1.log: LOST 1 process logged neither an OOM nor a lost "
    "process: rank0.log: last line: step 2.0",
    (4, ALL): f"4 processes ran out of device memory 4 processes, all alike: {OOM} first: process "
    "FIRST (HOST) at TIME before the next",
    (4, "one runs out before a collective"): "1 of 4 processes ran out of device memory process 3 "
    f"(HOST): {OOM} 3 processes did not run out of memory, but lost another process: rank0.log: "
    "LOST rank1.log: LOST rank2.log: LOST",
    (4, "one runs out after a collective"): "1 of 4 processes ran out of device memory process 2 "
    f"(HOST): {OOM} 3 processes did not run out of memory, but lost another process: rank0.log: "
    "LOST rank1.log: LOST rank3.log: LOST",
    (
        4,
        "one is killed",
    ): "0 of 4 processes ran out of device memory 3 processes did not run out of "
    "memory, but lost another process: rank1.log: LOST rank2.log: LOST rank3.log: LOST 1 process "
    "logged neither an OOM nor a lost process: rank0.log: last line: step 4.0",
    (4, "one is stopped"): "0 of 4 processes ran out of device memory 3 processes did not run out "
    "of memory, but lost another process: rank0.log: LOST rank1.log: LOST rank3.log: LOST 1 "
    "process logged neither an OOM nor a lost process: rank2.log: last line: step 4.0",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2, 4])
def test_a_job_that_fails(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who reports, how each process ends, what fold says of the reports and of the logs alone.

    All jobs wait together for the 20 s in which JAX misses a process.
    """
    cases = {name: case for (of, name), case in CASES.items() if of == count}
    jobs = {name: Job(tmp_path / name) for name in cases}
    try:
        for name, case in cases.items():
            _start(jobs[name], count, case)
        for name, case in cases.items():
            jobs[name].wait(_ending(case, count))
        seen = {name: _seen(jobs[name], case, capsys) for name, case in cases.items()}
    finally:
        for job in jobs.values():
            job.end()

    assert seen == {
        name: {
            "status": {rank: _status(case, rank) for rank in sorted(_ending(case, count))},
            "left": sorted(set(range(count)) - _ending(case, count)),
            "reports": case.reports,
            "stored": _stored(case, count),
            "logs": f"hbmwatch: {LOGS[count, name]}",
        }
        for name, case in cases.items()
    }
    assert {name: job.left() for name, job in jobs.items() if job.left()} == {}


def test_the_coordinator_leaves_its_peers_time_to_report(tmp_path: Path) -> None:
    """Where both run out at a time, the process with the coordination service exits last."""
    job = Job(tmp_path / "job")
    try:
        job.start(2, {0: "after", 1: "after"})
        job.wait(range(2))
    finally:
        job.end()

    status = [process.returncode for process in job.processes]
    assert status[0] == OOM_EXIT_STATUS
    # On a busy machine process 1 may need more than these seconds; JAX then ends it.
    assert status[1] in (OOM_EXIT_STATUS, -signal.SIGABRT)
    reported = ["hbmwatch.HbmOomError" in log.read_text() for log in job.logs]
    assert reported == [code == OOM_EXIT_STATUS for code in status]
    assert job.left() == []


def _start(job: Job, count: int, case: Case) -> None:
    """Start a job, and send its signal."""
    job.start(count, case.when)
    job.wait_for("ready" if "before" in case.when.values() else "step", range(count))
    if case.gets is not None:
        job.processes[case.loses].send_signal(case.gets)


def _ending(case: Case, count: int) -> set[int]:
    """The ranks that end without a launcher."""
    return set(range(count)) - ({case.loses} if case.gets == signal.SIGSTOP else set())


def _status(case: Case, rank: int) -> int:
    """How a rank ends: by itself, by the signal that it gets, or by JAX's distributed service."""
    if rank in case.reports:
        return OOM_EXIT_STATUS
    return -case.gets if case.gets and rank == case.loses else -signal.SIGABRT


def _stored(case: Case, count: int) -> object:
    """What fold says of the log folder."""
    if not case.reports:
        return None
    absent = [rank for rank in range(count) if rank not in case.reports]
    return [count, [[OOM, case.reports]], absent, [], []]


def _seen(job: Job, case: Case, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The same of a real job."""
    stored = None
    if job.logdir.is_dir():
        status, out, err = run(capsys, "fold", str(job.logdir), "--json")
        assert (status, err) == (0, "")
        folded = json.loads(out)
        groups = [
            [group["headline"], [process["index"] for process in group["processes"]]]
            for group in folded["groups"]
        ]
        fields = ("absent", "consequences", "others")
        stored = [folded["process_count"], groups, *[folded[name] for name in fields]]
    status, out, err = run(capsys, "fold", *map(str, job.logs))
    assert (status, err) == (0, "")
    for rank in case.reports:  # as Python prints an uncaught error
        log = job.logs[rank].read_text()
        assert 'Traceback (most recent call last):\n  File "' in log
        assert "\nhbmwatch.HbmOomError: RESOURCE_EXHAUSTED: Out of memory" in log
    reports = [json.loads(file.read_text()) for file in job.logdir.rglob("report.json")]
    _check_times(job, [report["process"] for report in reports])
    return {
        "status": {rank: job.processes[rank].returncode for rank in sorted(job.ended)},
        "left": job.left(),
        "reports": sorted(report["process"]["index"] for report in reports),
        "stored": stored,
        "logs": _general(out, case.loses),
    }


def _general(text: str, loses: int) -> str:
    """A text of fold without what is of this run."""
    text = " ".join(text.split()).replace(socket.gethostname(), "HOST")
    text = re.sub(r"process \d (\(HOST\)) at \S+Z, \d\.\d{3} s", r"process FIRST \1 at TIME", text)
    # Which of the two a rank is told first depends on the moment.
    for lost in (
        f"process {loses} stopped sending heartbeats",
        "the coordination service, which runs in process 0, did not answer",
    ):
        text = text.replace(lost, "LOST")
    return text


def _check_times(job: Job, processes: Sequence[Mapping[str, object]]) -> None:
    """The launcher sees a process end within seconds of its failure, and process 0 after others."""
    for process in processes:
        failed = datetime.datetime.fromisoformat(str(process["time"])).timestamp()
        seconds = job.ended[int(str(process["index"]))] - failed
        print(f"process {process['index']}: {seconds:.3f} s")
        assert (3 if process["index"] == 0 else 0) <= seconds < 120  # on any machine
