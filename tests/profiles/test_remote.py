"""Log folders in buckets: what is written there, how it is read, and every fault."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomReport, ProfileError, fold_reports, load_peak_summary, watch_hbm
from hbmwatch._profiles.files import entries, read_file
from hbmwatch._profiles.places import find_place
from hbmwatch._profiles.store import Location, Store, opened
from hbmwatch._profiles.stored import read_report, run_folders
from tests.cli.support import run
from tests.live import PRELUDE, SMALL, fill, oom_of
from tests.stores import ENVIRONMENT, Servers

pytestmark = pytest.mark.slow
STORES = ["s3", "gs"]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """The socket of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield server


@pytest.fixture
def silent(listening: socket.socket) -> str:
    """The address of a server that never answers."""
    return url(listening)


@pytest.fixture
def closed() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield url(unused)


def url(server: socket.socket) -> str:
    """The address of a server."""
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def report_of_oom(logdir: object) -> OomReport:
    """The report of a step that runs out of memory."""
    return oom_of(watch_hbm(fill, logdir=str(logdir)), SMALL).report


# --- written and read -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", STORES)
def test_a_run_is_written(protocol: str, servers: Servers, tmp_path: Path) -> None:
    """The report names the run in the bucket and its copy here, and both hold the same."""
    logdir = f"{protocol}://bucket/{tmp_path.name}"
    report = report_of_oom(logdir)
    local = Path(str(report.local_run))
    stored = local / "report.json"

    assert report.missing == ()
    assert (report.logdir, report.run) == (logdir, f"{logdir}/plugins/profile/{local.name}")
    assert f"local copy: {local}" in unwrapped(str(report))
    opens = logdir if protocol == "gs" else local.parents[2]  # XProf opens no s3://
    assert f"profile: xprof --logdir={opens} --port=6006" in str(report)
    of_copy = read_report(stored)
    assert of_copy == replace(report, run=str(local), logdir=of_copy.logdir, local_run=None)
    with opened(f"{report.run}/") as there:
        files = {entry.name: read_file(there / entry.name) for entry in entries(there)}
    assert sorted(files) == sorted(file.name for file in local.iterdir())
    assert OomReport.from_dict(json.loads(files["report.json"])) == report
    assert files["report.txt"].decode() == f"{report}\n"
    assert files["report.html"].decode() == report.to_html()


def test_every_command_reads_a_run_in_a_bucket(
    servers: Servers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As the same run in a folder of this host; the page on jobs has the same for gs://."""
    logdir = f"s3://bucket/{tmp_path.name}"
    report = report_of_oom(logdir)
    local = Path(str(report.local_run))
    stored = local / "report.json"

    listed, shown, peak, folded, same = (
        run(capsys, *command)
        for command in (
            ("show", logdir),
            ("show", logdir, "--run", "last"),
            ("peak", logdir),
            ("fold", logdir, str(stored)),
            ("diff", logdir, str(stored)),
        )
    )
    assert shown == (0, f"{report}\n", "")
    assert (listed[0], listed[1].splitlines()[1:]) == (0, [f"  {local.name}"])
    assert f"Run {local.name}." in unwrapped(peak[1])
    assert "xprof --logdir" not in peak[1]
    assert folded == (0, f"{fold_reports([report, read_report(stored)])}\n", "")
    assert same[0] == 0 and "1.00 PiB -> 1.00 PiB (+0 B)" in same[1]


def unwrapped(text: str) -> str:
    """The text of a report, its lines joined."""
    return " ".join(text.split())


# --- what is read ---------------------------------------------------------------------------------


def test_a_list_of_ten_thousand_runs_reads_what_it_shows(
    servers: Servers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The names come a thousand a request, and then the reports that are listed, or the one."""
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report_of_oom(tmp_path).to_dict()))
    with Store() as store:
        store.write({"s3://bucket/report.json": file})
    servers.ask("seed", "many", 10_000)
    requests = []
    outputs = []
    for options in ([], ["--run", "last"]):
        servers.ask("count")
        outputs.append(run(capsys, "show", "s3://bucket/many", *options))
        requests.append(servers.ask("count")["GET"])

    shown = [line for line in outputs[0][1].splitlines() if "_hbmwatch_p0_1_a_" in line]
    assert [line.rpartition("_")[2] for line in shown] == [str(9_999 - n) for n in range(20)]
    assert outputs[0][1].endswith("\nnot listed: 9980 older runs; --most 10000 lists all\n")
    assert [status for status, _, _ in outputs] == [0, 0]
    assert requests == [11 + 20, 11 + 2]  # 11 listings; s3fs also asks for each size


def test_a_remote_folder_is_searched_for_runs(
    servers: Servers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Log folders below the given one are found; what has no profile, or no report, says so."""
    report = report_of_oom(tmp_path)
    (profile,) = Path(str(report.run)).glob("*.xplane.pb")
    run_of_jax = "s3://bucket/search/eval/plugins/profile/2026_01_02_03_04_05"
    with Store() as store:
        store.write(
            {
                f"{run_of_jax}/host-1.xplane.pb": profile,
                f"{run_of_jax}/host-2.xplane.pb": profile,
                "s3://bucket/search/eval/plugins/profile/2026_01_02_03_04_06/note": profile,
                "s3://bucket/damaged/plugins/profile/a/report.json": profile,
            }
        )

    peak = unwrapped(run(capsys, "peak", "s3://bucket/search")[1])
    assert "Run eval/2026_01_02_03_04_05" in peak
    assert "Host host-1." in peak
    assert load_peak_summary(f"{run_of_jax}/host-2.xplane.pb") == report.summary
    status, out, err = run(capsys, "show", "s3://bucket/damaged")
    assert (status, out) == (1, "")
    assert (
        "left out: s3://bucket/damaged/plugins/profile/a/report.json is not a saved hbmwatch report"
        in err
    )
    assert err.endswith("hbmwatch: s3://bucket/damaged has no run with a report\n")
    with opened("s3://bucket") as bucket, opened("s3://none") as none:
        failing: list[tuple[str, Callable[..., Any], Location]] = [
            ("cannot read s3://bucket/none: no such folder", run_folders, bucket / "none"),
            ("there is no profile at s3://bucket/none: no such", find_place, bucket / "none"),
            ("there is no profile at s3://none/a: no such file", find_place, none / "a"),
            ("there is no profile in s3://bucket/damaged/plu", find_place, bucket / "damaged"),
            ("cannot read s3://bucket/none: no such", read_file, bucket / "none"),
        ]
        for text, read, location in failing:
            with pytest.raises(ProfileError, match=text):
                read(location)


# --- faults ---------------------------------------------------------------------------------------


def variables(case: str, servers: Servers, silent: str, closed: str) -> dict[str, str | None]:
    """Brings a fault about: the environment in which it happens."""
    environment: dict[str, dict[str, str | None]] = {
        "no credentials": {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "refused": {"AWS_ENDPOINT_URL": closed},
        "silent": {"AWS_ENDPOINT_URL": silent, "HBMWATCH_REMOTE_SECONDS": "2"},
        "silent (gs)": {"STORAGE_EMULATOR_HOST": silent, "HBMWATCH_REMOTE_SECONDS": "2"},
    }
    if case == "full":
        servers.ask("fail", "507 Insufficient Storage")
    if case in ("unknown key", "read-only"):
        key, secret = servers.ask("protect")
        key = key if case == "read-only" else "AKIAUNKNOWN"
        return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    return environment.get(case, {})


FAULTS = {
    "no such bucket": ("s3://none", "no such bucket or folder (The specified bucket does not exis"),
    "no such bucket (gs)": ("gs://none", "no such bucket or folder"),
    "no credentials": ("s3://bucket/x", "no credentials (Unable to locate credentials)"),
    "refused": (
        "s3://bucket/x",
        'connection refused (Could not connect to the endpoint URL: "CLOSED/bucket/x/',
    ),
    "silent": ("s3://bucket/x", "no answer within 2 s"),
    "silent (gs)": ("gs://bucket/x", "no answer within 2 s"),
    "full": (
        "s3://bucket/x",
        "full (An error occurred (InsufficientStorage) when calling the PutObject",
    ),
    "unknown key": ("s3://bucket/x", "access denied (The AWS Access Key Id you provided does not "),
    "read-only": ("s3://bucket/x", "access denied (Access Denied)"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_a_sentence(
    case: str, servers: Servers, silent: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error gets out with its report, the run stays on this host, and the reason is named."""
    logdir, reason = FAULTS[case]
    reason = reason.replace("CLOSED", closed)
    for name, value in variables(case, servers, silent, closed).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    try:
        report = report_of_oom(logdir)
    finally:
        servers.ask("mend")

    run = Path(str(report.run))
    (missing,) = report.missing
    assert missing.startswith(
        f"remote copy: cannot write {logdir}/plugins/profile/{run.name}: {reason}"
    )
    assert report.local_run is None
    assert replace(report, missing=()) == read_report(run / "report.json")
    assert load_peak_summary(run) == report.summary
    assert str(report.logdir) == str(run.parents[2])


@pytest.mark.parametrize("end", ["by itself", "killed"])
def test_a_silent_store_keeps_no_process(end: str, listening: socket.socket) -> None:
    """At the time limit, or when it is killed before, a program ends with all that it started."""
    seconds = "2" if end == "by itself" else "200"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}watch_hbm(fill, logdir='s3://bucket/x')(x)"],
        env={
            **os.environ,
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL": url(listening),
            "HBMWATCH_REMOTE_SECONDS": seconds,
        },
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    if end == "killed":
        accepted, _ = listening.accept()  # it waits for an answer
        child.kill()
        accepted.close()
    _, printed = child.communicate(timeout=200)
    until = time.monotonic() + 200
    while is_there(child.pid) and time.monotonic() < until:
        time.sleep(0.1)

    assert not is_there(child.pid)
    assert (child.returncode, "no answer within 2 s" in unwrapped(printed.decode())) == (
        (1, True) if end == "by itself" else (-signal.SIGKILL, False)
    )


def is_there(group: int) -> bool:
    """Whether a process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
