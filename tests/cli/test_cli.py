"""The command: what each answers, and how it fails."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hbmwatch
from hbmwatch import OomReport, load_peak_summary, parse_oom, parse_ooms
from hbmwatch._cli import main
from hbmwatch._cli.main import _progress
from hbmwatch._explain import conclude
from hbmwatch._messages.notes import message_notes
from tests import programs

MESSAGES = sorted((Path(__file__).parents[1] / "messages" / "samples").glob("**/*.txt"))
LOG = "step 7\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.94GiB.\nstep 8\n"
COMMANDS = ("explain", "peak", "diff", "demo")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status, and what was printed to stdout and stderr."""
    capsys.readouterr()
    try:
        status = main.main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def started(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "hbmwatch", *arguments]
    return subprocess.run(command, capture_output=True, check=False, **more)


_TWO_MODULES = """
import sys
import jax
import jax.numpy as jnp

def double(x):
    return x + x

def triple(x):
    return jnp.outer(x, x) * 3

x = jnp.ones(100_000)
with jax.profiler.trace(sys.argv[1]):
    jax.jit(double).lower(x).compile()
    jax.jit(triple).lower(x[:3000]).compile()
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log folder that a bare jax.profiler.trace wrote; in a process that has no other module."""
    logdir = tmp_path_factory.mktemp("cpu")
    subprocess.run([sys.executable, "-c", _TWO_MODULES, str(logdir)], check=True)
    return logdir


# --- explain --------------------------------------------------------------------------------------


def test_explain_says_what_a_log_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file gives the report of its message, with what that means."""
    (tmp_path / "log").write_text(LOG)
    message = parse_oom(LOG)
    assert message is not None
    report = OomReport(message, notes=message_notes(message))
    assert run(capsys, "explain", str(tmp_path / "log")) == (0, f"{report}\n", "")


def test_explain_takes_every_failure_of_a_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Several failures are several reports, in the log's order; as JSON they read back."""
    text = LOG + LOG.replace("6.94GiB", "1.00GiB")
    (tmp_path / "log").write_text(text)
    status, out, _ = run(capsys, "explain", "--json", str(tmp_path / "log"))
    found = [OomReport.from_dict(values) for values in json.loads(out)]
    assert status == 0
    assert found == [OomReport(m, notes=message_notes(m)) for m in parse_ooms(text)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"caf\xe9\n" + LOG.encode(), id="latin-1"),
        pytest.param(b"\xef\xbb\xbf" + LOG.encode(), id="utf-8 with a mark"),
        pytest.param(LOG.encode("utf-16"), id="utf-16"),
        pytest.param(b"\x00\xc3\x28" + LOG.encode() + bytes(range(256)), id="binary"),
    ],
)
def test_explain_reads_any_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """What is not UTF-8 in stdin does not hide the message."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status, out, err = run(capsys, "explain")
    assert (status, "asked for 6.94 GiB" in out, err) == (0, True, "")


@pytest.mark.parametrize("file", MESSAGES, ids=lambda file: file.stem)
def test_explain_reads_every_message(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    """Each known message gives a report below 100 columns, but for what cannot be broken."""
    expected = parse_ooms(file.read_text(encoding="utf-8"))
    status, out, _ = run(capsys, "explain", str(file))
    assert status == (0 if expected else 1)
    assert [line for line in out.splitlines() if len(line) > 99 and " " in line.strip()] == []


def test_explain_loads_nothing_heavy() -> None:
    """Neither jax nor numpy nor protobuf, so that it answers in a tenth of a second."""
    script = (
        "import sys; from hbmwatch._cli import main; status = main.main(['explain']);"
        "heavy = {'jax', 'jaxlib', 'numpy', 'google', 'xprof'} & set(sys.modules);"
        "print(status, heavy, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], input=LOG.encode(), capture_output=True, check=True
    )
    assert ended.stderr == b"0 set()\n"


def test_explain_answers_at_once() -> None:
    """The best of five runs takes less than a tenth of a second more than Python itself."""

    def seconds(*command: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *command], input=LOG.encode(), capture_output=True)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    bare = min(seconds("-c", "") for _ in range(5))
    assert min(seconds("-m", "hbmwatch", "explain") for _ in range(5)) < bare + 0.1


# --- peak -----------------------------------------------------------------------------------------


@programs.needs_xprof
@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_peak_agrees_with_xprof(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, platform: str
) -> None:
    """On a profile that a bare jax.profiler.trace made, every figure is XProf's."""
    found = programs.compiled("train", platform)
    run_folder = tmp_path / "plugins" / "profile" / "run"
    run_folder.mkdir(parents=True)
    (run_folder / "host.xplane.pb").write_bytes(found.xspace)
    status, out, err = run(capsys, "peak", str(tmp_path), "--module", found.name, "--json")
    assert (status, err) == (0, "")
    summary = OomReport.from_dict(json.loads(out)).summary
    assert summary is not None
    assert summary == load_peak_summary(tmp_path, module=found.name, reader="xprof")


def test_peak_shows_the_largest_module(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """Without --module it is the one with the most bytes, and that there are more is said."""
    status, out, err = run(capsys, "peak", str(profile))
    assert (status, err) == (0, "")
    assert out.startswith("hbmwatch: the memory peak of jit_triple\n  34.3 MiB at the peak")
    assert "note: the largest of " in out
    assert f"profile: xprof --logdir={profile} --port=6006" in out


def test_peak_shows_the_module_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    """--module takes a plain name, --top limits the rows."""
    _, out, _ = run(capsys, "peak", str(profile), "--module", "jit_double", "--top", "1")
    assert out.startswith("hbmwatch: the memory peak of jit_double\n  781 KiB at the peak")
    assert "    and 1 more, 391 KiB together" in out


def test_peak_writes_a_page(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """--html leaves a page beside the text."""
    page = tmp_path / "peak.html"
    status, out, _ = run(capsys, "peak", str(profile), "--html", str(page))
    assert (status, bool(out)) == (0, True)
    assert "<h1>The memory peak of jit_triple</h1>" in page.read_text(encoding="utf-8")


# --- diff -----------------------------------------------------------------------------------------


def test_diff_compares_a_saved_report_and_a_profile(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """What `peak --json` saved is the same program as the profile's, and another module is not."""
    saved = tmp_path / "before.json"
    saved.write_text(run(capsys, "peak", str(profile), "--json")[1])
    same = run(capsys, "diff", str(saved), str(profile))
    assert same[0] == 0
    assert same[1].splitlines()[1:] == ["  the same buffers at the peak"]
    status, out, _ = run(capsys, "diff", str(saved), str(profile), "--module", "jit_double")
    assert (status, out.splitlines()[0]) == (
        0,
        "jit_triple, jit_double: 34.3 MiB -> 781 KiB at the peak, -33.6 MiB",
    )


@pytest.mark.parametrize("piped", [False, True], ids=["a name without .json", "a pipe"])
def test_diff_knows_a_saved_report_by_its_text(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path, piped: bool
) -> None:
    """Also without the ending, and as the shell's `<(...)` hands it over."""
    saved = tmp_path / "before"
    text = run(capsys, "peak", str(profile), "--json")[1]
    if piped:
        os.mkfifo(saved)
        writer = threading.Thread(target=saved.write_text, args=(text,))
        writer.start()
    else:
        saved.write_text(text)
    status, out, _ = run(capsys, "diff", str(saved), str(profile))
    if piped:
        writer.join(10)
    assert (status, out.splitlines()[1:]) == (0, ["  the same buffers at the peak"])


def test_diff_as_values(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """--json has the totals of both and no change between a profile and itself."""
    status, out, _ = run(capsys, "diff", str(profile), str(profile), "--json")
    values = json.loads(out)
    assert (status, values["changes"], values["before"] == values["after"]) == (0, [], True)


# --- demo, versions, help -------------------------------------------------------------------------


def test_demo_runs_the_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, where the page's program always runs out of memory."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    status, out, _ = run(capsys, "demo")
    assert status == 0
    assert out.startswith("The program of https://openxla.org/xla/oom_debugging, on cpu")

    status, out, _ = run(capsys, "demo", "--json")
    report = OomReport.from_dict(json.loads(out))
    assert status == 0
    assert report.function == "oom" and report.summary is not None


@pytest.mark.parametrize(
    ("topology", "status", "said"),
    [
        ("v5e:2x2", 0, b"ran out of HBM while compiling for TPU v5 lite"),
        ("nonsense", 1, b"no compiler for 'nonsense' here"),
    ],
)
def test_demo_compiles_for_a_topology(topology: str, status: int, said: bytes) -> None:
    """Without a TPU, the TPU compiler's failure is shown; a topology that is none is refused."""
    if reason := programs.why_not("tpu"):
        pytest.skip(reason)
    ended = started("demo", "--topology", topology)
    assert ended.returncode == status
    assert said in (ended.stderr if status else ended.stdout)


def test_version_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """hbmwatch first, then jax, jaxlib and what else is there, none of which is imported."""
    status, out, _ = run(capsys, "--version")
    lines = out.splitlines()
    assert (status, lines[:3]) == (
        0,
        [
            f"hbmwatch {hbmwatch.__version__}",
            f"jax {importlib.metadata.version('jax')}",
            f"jaxlib {importlib.metadata.version('jaxlib')}",
        ],
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_shows_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Each command's help ends in lines that can be typed."""
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert f"  hbmwatch {command} " in out.partition("\nexample")[2]


def test_the_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """`hbmwatch --help` is enough to go on."""
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(f"    {command} " in out for command in COMMANDS)
    assert "exit status:\n  0    done\n" in out


# --- how it fails ---------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, profile: Path) -> dict[str, str]:
    """Paths that something is wrong with."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.xplane.pb").write_bytes(b"")
    (tmp_path / "log").write_text("all is well\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "old.json").write_text('{"schema": 0}')
    (tmp_path / "message.json").write_text(json.dumps(OomReport(parse_ooms(LOG)[0]).to_dict()))
    return {"here": str(tmp_path), "profile": str(profile)}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["explain", "{here}/log"], 1, "this text holds no out-of-memory error of a device"),
        (["explain", "{here}/no"], 3, "cannot read {here}/no: No such file or directory"),
        (["explain", "{here}/folder"], 3, "cannot read {here}/folder: Is a directory"),
        (["peak", "{here}/no"], 3, "there is no profile at {here}/no: no such file or folder"),
        (["peak", "{here}/folder"], 3, "there is no profile in {here}/folder: expected plugins"),
        (["peak", "{here}/empty.xplane.pb"], 3, "{here}/empty.xplane.pb is empty"),
        (["peak", "{here}/log"], 3, "{here}/log is damaged"),
        (["peak", "{profile}", "--module", "jit_no"], 3, "holds no module 'jit_no': choose one of"),
        (["peak", "{profile}", "--html", "{here}/no/x"], 3, "cannot write {here}/no/x: No such"),
        (["diff", "{profile}", "{here}/no"], 3, "there is no profile at {here}/no"),
        (["diff", "{here}/bad.json", "{profile}"], 3, "{here}/bad.json holds no report: Expecting"),
        (["diff", "{here}/deep.json", "{profile}"], 3, "{here}/deep.json holds no report: maximum"),
        (["diff", "{here}/old.json", "{profile}"], 3, "holds no report: no report of schema 1"),
        (["diff", "{here}/message.json", "{profile}"], 3, "message.json has no memory peak"),
        (["peak", "{profile}", "--top", "0"], 2, "argument --top: '0' is not a positive number"),
        (["peak", "{profile}", "--top", "ten"], 2, "--top: 'ten' is not a positive number"),
        (["peak", "{profile}", "--memory-space", "ram"], 2, "invalid choice: 'ram'"),
        (["explode"], 2, "invalid choice: 'explode'"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_what_is_wrong_is_said(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    """One line on stderr says what is wrong and where; the exit status says which kind."""
    given = [argument.format(**places) for argument in arguments]
    ended, out, err = run(capsys, *given)
    assert (ended, out) == (status, "")
    assert said.format(**places) in err
    assert "Traceback" not in err


def test_an_unknown_module_lists_those_that_are_there(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    """The error names the modules, as they can be asked for."""
    _, _, err = run(capsys, "peak", str(profile), "--module", "jit_no")
    for name in ("jit_double(", "jit_triple("):
        assert name in err


def test_a_reader_that_goes_away_is_no_traceback(profile: Path) -> None:
    """`hbmwatch peak ... | head -0` ends quietly, with the shell's status for a broken pipe."""
    command = [sys.executable, "-m", "hbmwatch", "peak", "--json", str(profile)]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        ("<&-", 3, "hbmwatch: cannot read stdin: it is closed\n"),
        ("< log >&-", 3, "hbmwatch: cannot write: stdout is closed\n"),
        ("< log 2>&- >/dev/null", 0, ""),
        ("no 2>&-", 3, ""),
        ("< log > /dev/full", 3, "hbmwatch: [Errno 28] No space left on device\n"),
    ],
)
def test_closed_and_full_streams_are_no_traceback(
    tmp_path: Path, redirection: str, status: int, said: str
) -> None:
    """One line where there is a stderr; nothing that is an error goes to stdout."""
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "log").write_text(LOG)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        ["bash", "-c", f'"$0" -m hbmwatch explain {redirection}', sys.executable],
        cwd=tmp_path, env=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", said)


def test_a_narrow_terminal_encoding_is_no_error(tmp_path: Path) -> None:
    """Characters that stdout cannot encode are replaced."""
    (tmp_path / "log").write_text(LOG)
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = started("explain", str(tmp_path / "log"), env=narrow)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_progress_shows_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer is said on stderr, and wiped away afterwards."""
    monkeypatch.setattr(main, "_SLOW_S", 0.0)
    leader, follower = pty.openpty()
    text = "hbmwatch: reading ..."
    expected = f"{text}\r{' ' * len(text)}\r"
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb", 0) as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with _progress("reading"):
            time.sleep(0.2)
        said = b""
        while len(said) < len(expected):
            said += seen.read(1000)
    assert said.decode() == expected


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file or a pipe it would be noise."""
    monkeypatch.setattr(main, "_SLOW_S", 0.0)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with _progress("reading"):
        time.sleep(0.2)
    assert stderr.getvalue() == ""


def test_what_every_host_says_is_told_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Equal messages are one report, with their number; as JSON each is there."""
    log = tmp_path / "job.log"
    log.write_text(f"{TEXT}\n" * 8, encoding="utf-8")
    status, out, _ = run(capsys, "explain", str(log))
    assert (status, out.count("asked for"), out.count("This stands there 8 times.")) == (0, 1, 1)
    status, out, _ = run(capsys, "explain", "--json", str(log))
    assert (status, len(json.loads(out))) == (0, 8)


TEXT = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."


def test_peak_is_shown_though_the_findings_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, profile: Path
) -> None:
    """What failed is a sentence; the peak is there all the same."""

    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(conclude, "find", fail)
    status, out, _ = run(capsys, "peak", str(profile))
    assert status == 0
    assert "34.3 MiB at the peak of jit_triple" in out
    assert "not known: the findings: RuntimeError: no luck" in out


def test_an_interrupt_has_the_shells_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends without a traceback."""

    def interrupt(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_read_text", interrupt)
    assert run(capsys, "explain") == (130, "", "")


def test_the_script_is_installed() -> None:
    """Where the package is installed, `hbmwatch` is this command."""
    scripts = importlib.metadata.entry_points(group="console_scripts", name="hbmwatch")
    if not scripts:
        pytest.skip("hbmwatch is not installed, only on the path")
    assert {script.load() for script in scripts} == {main.main}
