"""`hbmwatch explain`: reports on a log's failures, whatever bytes it holds, and a light start."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hbmwatch import OomReport, parse_oom, parse_ooms
from hbmwatch._messages.notes import message_notes
from tests.cli.support import LOG, run

SAMPLES = sorted((Path(__file__).parents[1] / "messages" / "samples").glob("*.txt"))


def test_a_file_gives_the_report_of_its_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The text shows what the message says and what it means."""
    (tmp_path / "log").write_text(LOG)
    message = parse_oom(LOG)
    assert message is not None
    report = OomReport(message, notes=message_notes(message))
    assert run(capsys, "explain", str(tmp_path / "log")) == (0, f"{report}\n", "")


def test_each_failure_of_a_log_has_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Reports come in the log's order; the JSON is a list of reports that can be loaded."""
    text = LOG + LOG.replace("6.94GiB", "1.00GiB")
    (tmp_path / "log").write_text(text)
    status, out, _ = run(capsys, "explain", "--json", str(tmp_path / "log"))
    loaded = [OomReport.from_dict(values) for values in json.loads(out)]
    assert status == 0
    assert loaded == [OomReport(m, notes=message_notes(m)) for m in parse_ooms(text)]


def test_equal_messages_are_one_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The text has one report with their number, and the JSON has one for each."""
    log = tmp_path / "job.log"
    line = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes.\n"
    log.write_text(line * 8)
    message = parse_oom(line)
    assert message is not None
    report = OomReport(message, notes=(*message_notes(message), "Appears 8 times in this log."))
    assert run(capsys, "explain", str(log)) == (0, f"{report}\n", "")
    status, out, _ = run(capsys, "explain", "--json", str(log))
    assert (status, len(json.loads(out))) == (0, 8)


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
