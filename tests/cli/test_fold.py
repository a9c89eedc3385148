"""`hbmwatch show` and `hbmwatch fold`: the reports that failing steps left in a log folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hbmwatch import HbmOomError, OomReport, Process, parse_ooms, watch_hbm
from hbmwatch._cli.rank_logs import _ranks
from hbmwatch._records.look import Look
from hbmwatch._report.text import report_text
from tests.cli.support import LOG, run
from tests.live import SMALL, fill


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A log folder with two runs of a failing step."""
    folder = tmp_path / "logs"
    step = watch_hbm(fill, logdir=folder)
    for _ in range(2):
        with pytest.raises(HbmOomError):
            step(SMALL)
    return folder


def test_a_run_is_complete_in_itself(tmp_path: Path) -> None:
    """The report names its run, which holds the profile and the report in three forms."""
    with pytest.raises(HbmOomError) as caught:
        watch_hbm(fill, logdir=tmp_path)(SMALL)
    report = caught.value.report

    assert report.run is not None
    files = sorted(path.name for path in Path(report.run).iterdir())
    (profile,) = [name for name in files if name.endswith(".xplane.pb")]
    assert files == sorted([profile, "report.html", "report.json", "report.txt"])
    stored = json.loads(Path(report.run, "report.json").read_text())
    assert OomReport.from_dict(stored) == report
    assert Path(report.run, "report.txt").read_text() == f"{report}\n"
    assert Path(report.run, "report.html").read_text() == report.to_html()
    assert f"  report:\n    hbmwatch show {report.run}\n" in str(report)
    wide = report_text(report, look=Look(width=1000))
    assert f"\n  report: hbmwatch show {report.run}\n" in wide


def test_show_lists_the_runs(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, with process and headline."""
    status, out, err = run(capsys, "show", str(logdir))

    lines = out.splitlines()
    runs = sorted((logdir / "plugins" / "profile").iterdir(), reverse=True)
    assert (status, err) == (0, "")
    assert [line.strip() for line in lines[1::2]] == [path.name for path in runs]
    assert "process 0 on " in lines[0] and "fill ran out of memory at run time on CPU" in lines[0]


def test_show_shows_one(logdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The last, by name, by its folder and by its file; as text, JSON and page."""
    runs = sorted((logdir / "plugins" / "profile").iterdir(), reverse=True)
    page = tmp_path / "page.html"

    shown = [
        run(capsys, "show", str(logdir), "--run", "last"),
        run(capsys, "show", str(logdir), "--run", runs[0].name, "--html", str(page)),
        run(capsys, "show", str(runs[0])),
        run(capsys, "show", str(runs[0] / "report.json")),
    ]

    assert shown == [(0, (runs[0] / "report.txt").read_text(), "")] * 4
    assert page.read_text() == (runs[0] / "report.html").read_text()
    status, out, _ = run(capsys, "show", str(runs[0]), "--json")
    assert (status, json.loads(out)) == (0, json.loads((runs[0] / "report.json").read_text()))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--run", "none"], "there is no run 'none'; `hbmwatch show PATH` lists all runs"),
        (["--html", "page.html"], "--html writes one report: choose a run with --run"),
    ],
)
def test_show_says_what_is_wrong(
    arguments: list[str], sentence: str, logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence."""
    assert run(capsys, "show", str(logdir), *arguments) == (3, "", f"hbmwatch: {sentence}\n")


def test_a_folder_without_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is a sentence."""
    assert run(capsys, "show", str(tmp_path)) == (
        1, "", f"hbmwatch: {tmp_path} has no run with a report\n"
    )  # fmt: skip
    status, _, err = run(capsys, "show", str(tmp_path / "none"))
    assert (status, err) == (
        3, f"hbmwatch: cannot read {tmp_path / 'none'}: No such file or directory\n"
    )  # fmt: skip


@pytest.mark.parametrize("command", ["show", "fold"])
def test_a_damaged_report_is_left_out(
    command: str, logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is wrong with it; the others are shown."""
    file = max((logdir / "plugins" / "profile").iterdir()) / "report.json"
    file.write_text('{"schema": 1}')

    status, out, err = run(capsys, command, str(logdir))

    sentence = (
        f"left out: {file} is not a saved hbmwatch report: report is incomplete: it has no message"
    )
    assert (status, err) == (0, f"hbmwatch: {sentence}\n")
    assert "fill ran out of memory" in out


def test_fold_takes_the_newest_report_of_a_process(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two runs are of one process."""
    status, out, err = run(capsys, "fold", str(logdir))

    assert (status, err) == (0, "")
    assert out.startswith("hbmwatch: 1 process ran out of device memory\n  process 0 (")
    assert "note: 1 older report of these processes is left out." in out


def test_fold_reads_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that ran out, those that lost a process, and those that say nothing."""
    for index in range(3):
        (tmp_path / f"rank{index}.log").write_text(LOG)
    (tmp_path / "rank3.log").write_text("step 7\nRead error: Connection reset by peer\n")
    (tmp_path / "rank4.log").write_text("step 7\n")
    page = tmp_path / "job.html"
    logs = [str(tmp_path / f"rank{index}.log") for index in range(5)]

    status, out, err = run(capsys, "fold", *logs, "--html", str(page))

    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "hbmwatch: 3 of 5 processes ran out of device memory",
        "  3 processes, all alike: the program ran out of device memory at run time on GPU: "
        "requested 6.94",
        "     GiB",
        "  1 process did not run out of memory, but lost another process:",
        "    rank3.log: connection reset by peer",
        "  1 process logged neither an OOM nor a lost process:",
        "    rank4.log: last line: step 7",
    ]
    assert out.strip() in page.read_text()
    status, out, _ = run(capsys, "fold", *logs, "--json")
    assert json.loads(out)["process_count"] == 5
    assert run(capsys, "fold", logs[4]) == (
        1, "", f"hbmwatch: no report and no out-of-memory error found in {logs[4]}\n"
    )  # fmt: skip


def test_fold_reads_reports_in_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log with a report names function, process, host and time, also where it is compressed."""
    for index in range(2):
        process = Process(index + 5, 8, f"host-{index}", time=f"2026-01-31T08:15:0{index}.000Z")
        report = OomReport(parse_ooms(LOG)[0], function="step", process=process)
        with gzip.open(tmp_path / f"{index}.log.gz", "wt") as log:
            log.write(f"2026-01-31 08:15:09,000 INFO step 7\n{report}\n")
    logs = sorted(map(str, tmp_path.iterdir()))

    status, out, err = run(capsys, "fold", *logs)

    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "hbmwatch: 2 of 8 processes ran out of device memory",
        "  2 processes, all alike: step ran out of device memory at run time on GPU: requested "
        "6.94 GiB",
        "  first: unknown; process 5 (host-0) has the earliest time, 2026-01-31T08:15:00.000Z, but "
        "it is",
        "     only 1.000 s before the next, and the clocks of two hosts can differ by that much.",
        "  no report of: 6 processes 0-4, 7",
    ]


def test_a_report_that_is_also_in_a_log_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stored one, which says more; a log with the rank of a process leaves it not absent."""
    report = OomReport(
        parse_ooms(LOG)[0],
        process=Process(1, 4, "host-1", time="2026-01-31T08:15:00.000Z"),
        versions={"jax": "0.10.2"},
    )
    (tmp_path / "report.json").write_text(json.dumps(report.to_dict()))
    (tmp_path / "train-1.out").write_text(f"{report}\n")
    (tmp_path / "train-3.out").write_text("ValueError: a bug\n")
    sources = [str(tmp_path / name) for name in ("report.json", "train-1.out", "train-3.out")]

    status, out, _ = run(capsys, "fold", *sources, "--json")

    folded = json.loads(out)
    assert (status, folded["older"], folded["absent"]) == (0, 0, [0, 2])
    assert folded["reports"] == [report.to_dict()]
    assert folded["others"] == [
        {"process": "train-3.out", "last_line": "ValueError: a bug", "index": 3}
    ]


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        (["rank0.log", "rank10.log"], [0, 10]),
        (["train-10.out", "train-12.out"], [10, 12]),  # srun --output=train-%t.out
        (["job-77/0/err.log", "job-77/1/err.log"], [0, 1]),
        (["trainer-0-3.log", "trainer-1-3.log"], [0, 1]),  # jobs of a JobSet
        (["trainer-0-3.log", "trainer-1-0.log"], [None, None]),
        (["host-4.log", "other.log"], [4, None]),
        (["a/train.log", "b/train.log"], [None, None]),
        (["worker_7.log.gz"], [7]),
        ([], []),
    ],
)
def test_the_rank_in_the_name_of_a_log(files: list[str], ranks: list[int | None]) -> None:
    """The number in which the names differ."""
    assert _ranks(files) == ranks


def test_fold_reads_a_folder_of_log_folders(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where each host has its own."""
    status, out, _ = run(capsys, "fold", str(logdir.parent))

    assert (status, out.splitlines()[0]) == (0, "hbmwatch: 1 process ran out of device memory")
