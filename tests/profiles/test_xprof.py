"""XProf as a second reader: the same answer, and a sentence for every way in which it fails."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hbmwatch._profiles import xprof
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules
from tests import programs
from tests.xla.support import changed, frame_cycle

MIB = 2**20


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """A folder for `xprof --logdir`, with the train step's profile in it."""
    run = tmp_path / "plugins" / "profile" / "run"
    run.mkdir(parents=True)
    (run / "host.xplane.pb").write_bytes(programs.compiled("train", "tpu").xspace)
    return tmp_path


# --- the real one ---------------------------------------------------------------------------------


@pytest.mark.tpu
@programs.needs_xprof
def test_it_reads_a_file_as_it_reads_bytes_and_writes_nothing_beside_it(log_folder: Path) -> None:
    """XProf's cache files go to a folder of the child's own."""
    found = programs.compiled("train", "tpu")
    (xplane,) = log_folder.glob("**/*.xplane.pb")
    expected = peak_summary(found.program)
    assert expected == xprof.peak_summary(xplane, found.name)
    assert expected == xprof.peak_summary(found.xspace, found.name)
    assert [xplane] == list(xplane.parent.iterdir())


@pytest.mark.tpu
@programs.needs_xprof
def test_totals_are_those_of_get_peak_allocations(log_folder: Path) -> None:
    """`xprof get_peak_allocations DIR` prints the total that the summary has."""
    found = programs.compiled("train", "tpu")
    tool = Path(sys.executable).with_name("xprof")
    run = subprocess.run(
        [tool, "get_peak_allocations", log_folder], capture_output=True, text=True, timeout=100
    )
    modules = json.loads(run.stdout[run.stdout.index("{") :])["modules"]
    total = peak_summary(found.program).total_allocation_bytes
    totals = {module["module_name"]: module["total_hbm_mib"] for module in modules}
    assert totals[found.name] == total / MIB


@pytest.mark.tpu
@programs.needs_xprof
def test_a_real_server_shows_a_packed_module(tmp_path: Path) -> None:
    """The run of a module from a dump opens in `xprof --logdir`, with the same figures."""
    found = programs.compiled("train", "tpu")
    run = tmp_path / "plugins" / "profile" / "run"
    run.mkdir(parents=True)
    data = pack_modules([("jit_train_step", 77, found.hlo_proto)], "host")
    (run / "host.xplane.pb").write_bytes(data)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    tool = Path(sys.executable).with_name("xprof")
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [tool, f"--logdir={tmp_path}", f"--port={port}"], stdout=log, stderr=log
        )
    try:
        answer = _memory_viewer(port, "jit_train_step(77)", server)
    finally:
        server.terminate()
        server.wait(30)
    program = parse_program(found.hlo_proto, "jit_train_step(77)")
    assert xprof.to_summary(answer, program.name, "hbm") == peak_summary(program)


def _memory_viewer(port: int, module: str, server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a server says of a module, once it listens."""
    query = {"run": "run", "tag": "memory_viewer", "host": "", "module_name": module}
    base = f"http://localhost:{port}/data/plugin/profile"
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{base}/run_tools?run=run", timeout=30).read()
            url = f"{base}/data?{urllib.parse.urlencode(query)}"
            data = urllib.request.urlopen(url, timeout=30).read()
            answer: dict[str, Any] = json.loads(gzip.decompress(data))
            return answer
        except (ConnectionError, urllib.error.URLError):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)


@programs.needs_xprof
def test_a_module_that_is_not_there_is_a_sentence() -> None:
    """XProf answers nothing; the error names the module."""
    with pytest.raises(
        ProfileError, match=r"XProf returned no Memory Viewer data for jit_nope\(1\)$"
    ):
        xprof.peak_summary(programs.compiled("small", "cpu").xspace, "jit_nope(1)")


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(ProfileError, match=r"cannot read .*absent\.xplane\.pb: No such file"):
        xprof.peak_summary(tmp_path / "absent.xplane.pb", "jit_step(1)")


def test_an_unknown_memory_space_is_a_value_error() -> None:
    """Before any child starts."""
    with pytest.raises(ValueError, match="unknown memory_space 'hmb'"):
        xprof.peak_summary(b"", "jit_step(1)", "hmb")


@pytest.mark.slow
@programs.needs_xprof
def test_a_proto_on_which_xprof_never_ends_cannot_take_the_memory() -> None:
    """A cycle of stack frames makes XProf collect frames for ever: it hits its limit and dies."""
    data = pack_modules([("jit_train_step", 7, changed(frame_cycle))], "host")
    with pytest.raises(ProfileError, match=r"XProf (failed in its process|did not answer)"):
        xprof.peak_summary(data, "jit_train_step(7)", timeout_s=60)


# --- stand-ins that fail for real -----------------------------------------------------------------

ANSWER = """
import json, sys
def xspace_to_tool_names(paths): return []
def xspace_to_tool_data(paths, tool, options):
    return {answer}, "application/json"
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str | None) -> None:
    """Put a package named xprof before the real one, whose raw_to_tool_data is this source."""
    package = folder / "stand-in" / "xprof"
    (package / "convert").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    if source is not None:
        (package / "convert" / "__init__.py").write_text("")
        (package / "convert" / "raw_to_tool_data.py").write_text(source)
    else:
        (package / "convert").rmdir()
    monkeypatch.syspath_prepend(str(package.parent))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (None, r"XProf failed in its process \(exit status 1\): .*No module named 'xprof.convert'"),
        ("raise ImportError('no wheel')", r"\(exit status 1\): .*ImportError: no wheel"),
        (ANSWER.format(answer="None"), r"^XProf returned no Memory Viewer data for jit_step\(1\)$"),
        (ANSWER.format(answer="b'<html>'"), r"\(exit status 1\): .*JSONDecodeError"),
        (ANSWER.format(answer="b'7'"), "unexpected XProf output: no Memory Viewer data"),
        (
            ANSWER.format(answer="""b'{"maxHeap": 3}'"""),
            r"XProf output for jit_step\(1\): TypeError",
        ),
        (
            ANSWER.format(answer="""b'{"peakHeapMib": "much"}'"""),
            r"unexpected XProf output for jit_step\(1\): TypeError",
        ),
        ("import os; os.abort()", r"XProf failed in its process \(killed by SIGABRT\)"),
        ("import os; os.kill(os.getpid(), 9)", r"\(killed by SIGKILL\)"),
        ("import os; os._exit(0)", "XProf's process ended without an answer"),
        (
            "import sys; print('core meltdown', file=sys.stderr); sys.exit(3)",
            r"\(exit status 3\): core meltdown$",
        ),
    ],
)
def test_every_way_to_fail_is_a_sentence(
    source: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, empty-handed, garbled, killed by a signal: what happened, and what it printed."""
    stand_in(tmp_path, monkeypatch, source)
    with pytest.raises(ProfileError, match=sentence):
        xprof.peak_summary(b"profile", "jit_step(1)")


def children() -> set[str]:
    """The ids of this process's children."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_child_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit the child is gone, and the error says so."""
    stand_in(tmp_path, monkeypatch, "import time; time.sleep(600)")
    before = children()
    with pytest.raises(ProfileError, match=r"XProf did not answer within 2 s and was stopped"):
        xprof.peak_summary(b"profile", "jit_step(1)", timeout_s=2)
    assert children() == before


def test_noise_on_stdout_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library prints is not taken for the answer."""
    source = "print('{}' * 9)\n" + ANSWER.format(answer="b'{}'")
    stand_in(tmp_path, monkeypatch, source)
    assert xprof.preprocess_results(b"profile", [("jit_step(1)", "hbm")]) == [{}]


def test_the_child_has_the_parent_s_path_and_no_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sys.path goes to the child in its order, and nothing in it imports jax."""
    answer = "json.dumps({'path': sys.path, 'jax': 'jax' in sys.modules})"
    stand_in(tmp_path, monkeypatch, ANSWER.format(answer=answer))
    (result,) = xprof.preprocess_results(b"profile", [("jit_step(1)", "hbm")])
    assert result is not None
    expected = [entry or os.getcwd() for entry in sys.path]
    assert [e for e in result["path"] if e in expected] == list(dict.fromkeys(expected))
    assert result["jax"] is False


def test_the_working_folder_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a job's folder was cleaned up; Python writes it as an empty entry of its path."""
    stand_in(tmp_path, monkeypatch, ANSWER.format(answer="b'{}'"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    assert xprof.preprocess_results(b"profile", [("jit_step(1)", "hbm")]) == [{}]


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_frozen_program_starts_no_child(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sys.executable would be the program itself: say so instead."""
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(ProfileError, match="runs in a child process of the Python interpreter"):
        xprof.peak_summary(b"profile", "jit_step(1)")


def test_an_answer_with_its_zeros_left_out_is_an_empty_summary() -> None:
    """XProf's JSON leaves out zeros: each is 0, not unknown."""
    summary = xprof.to_summary({"moduleName": "jit_step"}, "jit_step(3)", "vmem")
    assert (summary.module, summary.program_id, summary.memory_space) == ("jit_step", 3, "vmem")
    figures = (summary.peak_bytes, summary.total_allocation_bytes, summary.parameter_bytes)
    assert (figures, summary.peak_position, summary.ops) == ((0, 0, 0), None, ())


def test_the_legacy_source_line_stands_in_for_a_stack() -> None:
    """Profiles from before jax 0.10 have a file and a line and no frames."""
    row = {
        "instructionName": "dot",
        "logicalBufferSizeMib": 1,
        "sourceInfo": {"fileName": "/me/train.py", "lineNumber": 5},
    }
    summary = xprof.to_summary({"maxHeap": [row]}, "jit_step(3)", "hbm")
    op = PeakOp("dot", size_bytes=MIB, source="train.py:5", stack=("/me/train.py:5",))
    assert summary.ops == (op,)
