"""The page on jobs of many processes: its outputs, and its scripts for launchers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hbmwatch import OomReport, Process
from hbmwatch._explain.failure import OOM_EXIT_STATUS
from tests.cli.support import run
from tests.docs.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "pods.md"
REPORT = ROOT / "tests" / "golden" / "train.json"
LOST = (
    "ValueError: UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] "
    "Connection closed by peer [10.0.0.2]:4768"
)


def failed(index: int) -> OomReport:
    """The report of one of 64 hosts: of a v5e's compiler, with an older libtpu on one of them."""
    report = OomReport.from_dict(json.loads(REPORT.read_text()))
    older = {"libtpu": "0.0.42.1"} if index == 17 else {}
    return dataclasses.replace(
        report,
        process_index=index,
        process=Process(index, 64, f"host-{index}", time=f"2026-01-31T08:15:02.{index:03}Z"),
        versions={**report.versions, **older},
    )


def shown(number: int, actual: str) -> str:
    """An output that the page shows; HBMWATCH_UPDATE_GOLDEN=1 puts the actual one there."""
    text = blocks(PAGE, "text")[number]
    if os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1":
        PAGE.write_text(PAGE.read_text().replace(text, actual))
        return actual
    return text


def test_the_report_of_64_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is what the command prints for 62 of them."""
    for index in range(62):
        folder = tmp_path / "plugins" / "profile" / f"2026_01_31_p{index}"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(failed(index).to_dict()))

    status, out, err = run(capsys, "fold", str(tmp_path))

    assert (status, out, err) == (0, shown(0, out), "")


def test_the_report_of_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is what the command prints for one of each kind."""
    monkeypatch.chdir(tmp_path)
    for rank, last in enumerate((failed(0).message.text, LOST, "step 7")):
        Path(f"rank{rank}.log").write_text(f"step 6\n{last}\n")

    status, out, err = run(capsys, "fold", "rank0.log", "rank1.log", "rank2.log")

    assert (status, out, err) == (0, shown(1, out), "")


def run_script(words: str, folder: Path) -> str:
    """What the script of the page that has these words prints, run as a file."""
    (script,) = (block for block in blocks(PAGE, "py") if words in block)
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


def of_ranks(folder: Path) -> list[tuple[int, int]]:
    """The ranks and job sizes in the reports of a log folder."""
    reports = [json.loads(file.read_text()) for file in folder.rglob("report.json")]
    return sorted((one["process"]["index"], one["process"]["count"]) for one in reports)


@pytest.mark.slow
def test_processes_that_are_spawned(tmp_path: Path) -> None:
    """The parent sees the exit status, and each process has its rank."""
    assert run_script("context.Process", tmp_path) == f"{[OOM_EXIT_STATUS] * 2}\n"
    assert of_ranks(tmp_path / "xprof") == [(0, 1), (1, 1)]


@pytest.mark.clients
@pytest.mark.parametrize("words", ["ray.get(step)", "JaxTrainer("])
def test_ray(words: str, tmp_path: Path) -> None:
    """The driver gets the reports of actors, and of workers of Ray Train, each with its rank."""
    pytest.importorskip("ray")

    printed = run_script(words, tmp_path)

    # Ray Train ends the other workers when the first one has failed.
    counts = (2,) if words == "ray.get(step)" else (1, 2)
    both = [(0, 1), (1, 1)]
    assert any(f"hbmwatch: {count} process" in printed for count in counts), printed
    assert "train_step ran out of memory at run time on CPU: requested 1.00 PiB" in printed
    ranks = of_ranks(tmp_path / "xprof")
    assert len(ranks) in counts and set(ranks) <= set(both)
