"""Every page of docs/: its snippets run, its commands work, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomMessage, OomReport, watch_hbm
from hbmwatch._cli.main import main
from hbmwatch._profiles.store import Store
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests import programs
from tests.live import SMALL, fill, oom_of
from tests.stores import Servers
from tests.test_layers import FLOOR

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(file: Path, language: str) -> list[str]:
    """The fenced blocks of a language in a page."""
    text = file.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# docs/logging.md is run by test_logs.py, which looks at what the recipes write.
@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [file for file in PAGES if file.stem != "logging"], ids=lambda file: file.stem
)
def test_the_snippets_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, as a reader pastes them."""
    needs_tpu = any(', on="v5e"' in block for block in blocks(file, "python"))
    if needs_tpu and (reason := programs.why_not("tpu")):
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for number, block in enumerate(blocks(file, "python")):
        exec(compile(block, f"{file.name} block {number}", "exec"), names)


def test_the_commands_of_the_page_on_jobs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the log folder of a failure, and on the logs of two processes."""
    monkeypatch.chdir(tmp_path)
    oom_of(watch_hbm("xprof")(fill), SMALL)
    Path("rank0.log").write_text("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.\n")
    Path("rank1.log").write_text("Read error: Connection reset by peer\n")
    Path("rank2.log").write_text("step 7\n")
    for line in commands_on_jobs(in_buckets=False):
        assert main(shlex.split(line)[1:]) == 0, line
    assert Path("job.html").stat().st_size > 1000
    assert "rank1.log: connection reset by peer" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_on_buckets_work(
    servers: Servers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On runs that a failure has copied to each of the addresses."""
    commands = commands_on_jobs(in_buckets=True)
    kept = oom_of(watch_hbm(fill, logdir="gs://bucket/xprof"), SMALL).report
    (profile,) = Path(str(kept.local_run)).glob("*.xplane.pb")
    with Store() as store:
        for logdir in ("s3://bucket/before", "s3://bucket/after"):
            store.write({f"{logdir}/plugins/profile/run/{profile.name}": profile})
    printed = []
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
        printed.append(capsys.readouterr().out)
    assert printed[1] == f"{kept}\n"
    assert [len(text.splitlines()) for text in (printed[0], printed[-1])] == [2, 2]


def commands_on_jobs(in_buckets: bool) -> list[str]:
    """The commands of the page on jobs: those on addresses, or the others."""
    lines = "".join(blocks(ROOT / "docs" / "pods.md", "sh")).splitlines()
    return [line for line in lines if ("://" in line) is in_buckets]


def test_the_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of the command line's page does what it says, on a profile and a log."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "xprof" / "plugins" / "profile" / "run"
    run.mkdir(parents=True)
    compiled = programs.compiled("train", "cpu")
    proto = read_modules(compiled.xspace)[compiled.program.name]
    alone = pack_modules([(compiled.program.module, compiled.program.program_id, proto)], "host")
    (run / "host.xplane.pb").write_bytes(alone)
    Path("train.log").write_text("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.\n")
    (commands,) = blocks(ROOT / "docs" / "command-line.md", "sh")
    for line in commands.splitlines():
        command, _, target = line.replace("/tmp/", "").partition(" > ")
        name, *arguments = shlex.split(command)
        assert name == "hbmwatch"
        assert (line, main(arguments)) == (line, 0)
        printed = capsys.readouterr().out
        assert printed
        if target:
            Path(target).write_text(printed)
    assert Path("peak.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_links_lead_somewhere(file: Path) -> None:
    """Every relative link of a page is a file or a folder of the project."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_the_exit_codes_are_those_of_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page and `hbmwatch --help` list the same."""
    monkeypatch.setenv("COLUMNS", "200")  # so that no line is broken
    with pytest.raises(SystemExit):
        main(["--help"])
    helped = capsys.readouterr().out.partition("exit status:\n")[2]
    codes = [tuple(line.split(maxsplit=1)) for line in helped.splitlines() if line]
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE) == codes


def test_the_schema_names_every_field() -> None:
    """Each field of a stored report is in the schema's table."""
    text = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    fields = OomReport(OomMessage("")).to_dict().keys()
    assert [field for field in fields if f"`{field}`" not in table] == []


def test_the_rooms_are_those_of_the_layers() -> None:
    """docs/how-it-works.md lists every package on its floor."""
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.*?) \|", text, re.MULTILINE)
    listed = {room: int(floor) for floor, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}
    assert listed == FLOOR
