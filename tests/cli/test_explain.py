"""`hbmwatch explain`: reports on a log's failures, whatever bytes it holds, and a light start."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from hbmwatch import OomReport, parse_oom, parse_ooms
from hbmwatch._messages.notes import message_notes
from hbmwatch._report.text import headline
from tests.cli.support import LOG, run

SAMPLES = sorted((Path(__file__).parents[1] / "messages" / "samples").glob("*.txt"))
NEXT = (
    "next: to see which buffers filled the memory, put @watch_hbm on the step, or start the job "
    "with\n  hbmwatch run SCRIPT\n"
)
GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_file_gives_the_report_of_its_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The text shows what the message says and what it means."""
    (tmp_path / "log").write_text(LOG)
    message = parse_oom(LOG)
    assert message is not None
    place = f"Found in {tmp_path / 'log'}, line 2."
    report = OomReport(message, notes=(place, *message_notes(message)))
    assert run(capsys, "explain", str(tmp_path / "log")) == (0, f"{report}\n\n{NEXT}", "")


def test_a_log_with_a_report_says_where_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In place of how to get one; a headline alone is no report."""
    message = parse_oom(LOG)
    assert message is not None
    report, path = OomReport(message), tmp_path / "log"

    path.write_text(f"start\n{LOG}{report}\n")
    _, out, _ = run(capsys, "explain", str(path))
    assert out.endswith(f"\n\nnext: read the report of hbmwatch, at the error in\n  {path}:3\n")

    path.write_text(f"start\n{LOG}{headline(report)}\n")
    _, out, _ = run(capsys, "explain", str(path))
    assert out.endswith(NEXT) and out.count("next: ") == 1


def test_each_failure_of_a_log_has_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Reports come in the log's order; the JSON is a list of reports with their lines."""
    text = LOG + LOG.replace("6.94GiB", "1.00GiB")
    (tmp_path / "log").write_text(text)
    status, out, _ = run(capsys, "explain", "--json", str(tmp_path / "log"))
    loaded = [OomReport.from_dict(values) for values in json.loads(out)]
    assert status == 0
    assert loaded == [OomReport(m, notes=message_notes(m)) for m in parse_ooms(text)]
    places = [(values["file"], values["line"]) for values in json.loads(out)]
    assert places == [(str(tmp_path / "log"), 2), (str(tmp_path / "log"), 5)]


def test_a_log_of_a_process_that_lost_another_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Says so, beside the errors of other logs too; an error in the same log says more."""
    monkeypatch.chdir(tmp_path)
    lost = "ValueError: Gloo all-reduce failed: Connection closed by peer\n"
    Path("0.log").write_text(lost)
    Path("1.log").write_text(LOG + lost)
    Path("2.log").write_text(lost)
    says = "(Gloo's all-reduce failed: connection closed by peer)"

    assert run(capsys, "explain", "0.log") == (
        1,
        "",
        "hbmwatch: no device out-of-memory error in 1 line of 0.log\n"
        f"hbmwatch: 0.log: this process lost another process {says}; look for the "
        "cause in its log\n",
    )
    status, out, err = run(capsys, "explain", "0.log", "1.log", "2.log")
    assert (status, out) == (0, run(capsys, "explain", "1.log")[1])
    assert err == (
        f"hbmwatch: 0.log and 1 more: this process lost another process {says}; look "
        "for the cause in its log\n"
    )


def test_an_error_that_may_be_an_oom_is_mentioned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is not counted as an error, and is named once for all logs."""
    logs = [tmp_path / name for name in ("a.log", "b.log")]
    for log in logs:
        log.write_text("jax.errors.JaxRuntimeError: INTERNAL: YNNPACK operation failed: error\n")

    assert run(capsys, "explain", *map(str, logs)) == (
        1,
        "",
        "hbmwatch: no device out-of-memory error in 2 lines of 2 files\n"
        "hbmwatch: XLA gives no reason for this failure of YNNPACK, the library that computes "
        "matrix products on the CPU. Memory possibly ran out: YNNPACK fails like this when its "
        "buffers do not fit in host memory.\n",
    )


def test_equal_messages_are_one_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text has one report with all places, and the JSON has one for each."""
    monkeypatch.chdir(tmp_path)
    line = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes.\n"
    Path("0.log").write_text(line * 8)
    for host in range(1, 6):
        Path(f"{host}.log").write_text(f"start\n{line}{line}")
    message = parse_oom(line)
    assert message is not None
    place = (
        "Found 18 times: 0.log, lines 1, 2, 3, 4, 5 and 3 more; 1.log, lines 2 and 3; 2.log, lines "
        "2 and 3; 3.log, lines 2 and 3; and 2 more files."
    )
    report = OomReport(message, notes=(place, *message_notes(message)))
    files = [f"{host}.log" for host in range(6)]
    assert run(capsys, "explain", *files) == (0, f"{report}\n\n{NEXT}", "")
    status, out, _ = run(capsys, "explain", "--json", *files)
    assert (status, len(json.loads(out))) == (0, 18)


def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each has a sentence, and the status says that something is missing."""
    (tmp_path / "log").write_text(LOG)
    missing, folder = str(tmp_path / "no.log"), str(tmp_path)
    status, out, err = run(capsys, "explain", missing, str(tmp_path / "log"), folder)
    assert (status, "6.94 GiB" in out) == (3, True)
    assert err.splitlines() == [
        f"hbmwatch: cannot read {missing}: No such file or directory",
        f"hbmwatch: cannot read {folder}: Is a directory",
    ]
    assert run(capsys, "explain", "/dev/zero") == (
        3,
        "",
        "hbmwatch: cannot read /dev/zero: it is a device\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_a_profile_is_named(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path, compressed: bool
) -> None:
    """It is no log; of a device memory profile the sentence is that of `peak`."""
    if compressed:
        jax.profiler.save_device_memory_profile(str(tmp_path / "memory.prof"))
        file, says = tmp_path / "memory.prof", "is a device memory profile, as jax.profiler."
    else:
        (file,) = profile.rglob("*.xplane.pb")
        says = "is a profile: `hbmwatch peak` reads it"
    status, out, err = run(capsys, "explain", str(file))

    assert (status, out) == (1, "")
    assert err.startswith(f"hbmwatch: {file} {says}")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("start", ["\n", "\x1b[0m", "\nTotal bytes used: 12345\n", "1%\b\b2%\n"])
def test_a_long_log_is_no_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, start: str
) -> None:
    """It is never held whole, whatever character it begins with."""
    file = tmp_path / "train.log"
    file.write_text(start + "step 7, loss 1.25\n" * 3_000_000)
    tracemalloc.start()
    printed = run(capsys, "explain", str(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    lines = 3_000_000 + start.count("\n")
    nothing = f"hbmwatch: no device out-of-memory error in {lines:,} lines of {file}\n"
    assert printed == (1, "", nothing)
    assert peak < 30 * 2**20


def zstd(data: bytes) -> bytes:
    """The data as zstd has them."""
    compressed: bytes = pytest.importorskip("zstandard").compress(data)
    return compressed


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_a_compressed_log_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """By what it holds, whatever its name is; several archives in one file, too."""
    (tmp_path / "log").write_bytes(compress(b"step\n" * 1000) + compress(LOG.encode()))
    status, out, err = run(capsys, "explain", "--json", str(tmp_path / "log"))
    assert (status, [entry["line"] for entry in json.loads(out)], err) == (0, [1002], "")


def test_a_compressed_log_that_is_cut_off_is_read_as_far_as_it_goes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A job that is killed leaves such a file."""
    data = gzip.compress(LOG.encode() + random.Random(0).randbytes(100_000))
    (tmp_path / "log.gz").write_bytes(data[:-50_000])
    status, out, err = run(capsys, "explain", str(tmp_path / "log.gz"))
    assert (status, "6.94 GiB" in out) == (0, True)
    assert err.startswith(f"hbmwatch: {tmp_path / 'log.gz'} cannot be read to its end: ")


@pytest.mark.parametrize("name", ["train", "mesh", "live"])
def test_a_stored_report_is_shown_as_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """The JSON of a report, alone or in a list, as to_dict() and --json write it."""
    stored = json.loads((GOLDEN / f"{name}.json").read_text())
    report = OomReport.from_dict(stored)
    path = tmp_path / "report.json"
    shown = dataclasses.replace(report, notes=(f"Found in {path}.", *report.notes))
    for values in (stored, [stored]):
        path.write_text(json.dumps(values))
        assert run(capsys, "explain", str(path)) == (0, f"{shown}\n", "")
    status, out, _ = run(capsys, "explain", "--json", str(path))
    assert (status, OomReport.from_dict(json.loads(out)[0])) == (0, report)


WORDS = ("platform", "phase", "memory_space")
FIGURES = ("requested", "used", "limit", "free", "largest_free")


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_the_text_of_a_report_says_the_same_again(file: Path) -> None:
    """What a report's title and figures say is read back, within the rounding of the text."""
    message = parse_oom(file.read_text())
    assert message is not None
    (back,) = parse_ooms(str(OomReport(message)))
    stated = [name for name in WORDS if getattr(message, name) is not None]
    assert [getattr(back, name) for name in stated] == [getattr(message, name) for name in stated]
    for name in (f"{figure}_bytes" for figure in FIGURES):
        said, again = getattr(message, name), getattr(back, name)
        assert (said is None) == (again is None), name
        assert said is None or abs(said - again) <= back.resolution_bytes.get(name, 0), name


def test_json_that_is_no_report_is_read_as_a_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A log of JSON lines begins like a stored report."""
    line = json.dumps({"schema": 1, "message": LOG})
    for text in (line, "[" * 100_000 + '"schema"' + line, f'{line}\n{{"step": 7}}\n'):
        (tmp_path / "log").write_text(text)
        status, out, err = run(capsys, "explain", str(tmp_path / "log"))
        assert (status, "6.94 GiB" in out, err) == (0, True, "")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"caf\xe9\n" + LOG.encode(), id="latin-1"),
        pytest.param(b"\xef\xbb\xbf" + LOG.encode(), id="utf-8 with a mark"),
        pytest.param(LOG.encode("utf-16"), id="utf-16"),
        pytest.param(b"\x00\xc3\x28" + LOG.encode() + bytes(range(256)), id="binary"),
    ],
)
def test_bytes_that_are_not_utf_8_do_not_hide_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """Stdin is read in any encoding."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status, out, err = run(capsys, "explain")
    assert (status, "6.94 GiB" in out, err) == (0, True, "")


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_every_known_message_has_a_report_of_less_than_100_columns(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    """Only a word that cannot be broken makes a longer line."""
    status, out, err = run(capsys, "explain", str(file))
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if len(line) > 99 and " " in line.strip()] == []


def test_it_imports_only_what_a_message_needs() -> None:
    """No third-party package is loaded, no slow module of Python's, and only these rooms."""
    script = (
        "import sys; before = set(sys.modules);"
        "from hbmwatch._cli.main import main; status = main(['explain']);"
        "print(status, *sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], input=LOG, capture_output=True, text=True, check=True
    )
    status, *loaded = ended.stderr.split()
    packages = {name.partition(".")[0] for name in loaded}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("hbmwatch.")}
    slow = {"asyncio", "ctypes", "decimal", "email", "http", "importlib.metadata",
            "multiprocessing", "socket", "subprocess", "tempfile", "unittest", "urllib.request",
            "xml"}  # fmt: skip

    assert status == "0"
    assert packages - sys.stdlib_module_names == {"hbmwatch"}
    assert rooms == {"_cli", "_messages", "_records", "_report", "_version", "_xla"}
    assert slow & set(loaded) == set()
