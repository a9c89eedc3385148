"""`hbmwatch peak`: the peak of a profile, as text, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hbmwatch import OomReport, load_peak_summary
from hbmwatch._explain import conclude
from tests import programs
from tests.cli.support import run


@programs.needs_xprof
@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_the_peak_agrees_with_xprof(
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


def test_without_a_module_the_largest_is_shown(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    """A note says that there are more, and the report says how to open the profile."""
    status, out, err = run(capsys, "peak", str(profile))
    assert (status, err) == (0, "")
    assert out.startswith("hbmwatch: memory peak of jit_triple\n  Peak of jit_triple: 34.3 MiB")
    assert "note: The largest of " in out
    assert f"profile: xprof --logdir={profile} --port=6006" in out


def test_the_named_module_is_shown(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """--module takes a plain name, --top limits the rows."""
    _, out, _ = run(capsys, "peak", str(profile), "--module", "jit_double", "--top", "1")
    assert out.startswith("hbmwatch: memory peak of jit_double\n  Peak of jit_double: 781 KiB")
    assert "    and 1 more (391 KiB)" in out


def test_html_writes_a_page(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """--html leaves a page beside the text."""
    page = tmp_path / "peak.html"
    status, out, _ = run(capsys, "peak", str(profile), "--html", str(page))
    assert (status, bool(out)) == (0, True)
    assert "<title>hbmwatch: memory peak of jit_triple</title>" in page.read_text(encoding="utf-8")


def test_the_peak_is_shown_although_the_findings_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, profile: Path
) -> None:
    """A sentence says what failed, and the peak is still shown."""

    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(conclude, "find_findings", fail)
    status, out, _ = run(capsys, "peak", str(profile))
    assert status == 0
    assert "Peak of jit_triple: 34.3 MiB" in out
    assert "unavailable: findings: RuntimeError: no luck" in out


def test_an_unknown_module_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    """The error names the modules as --module takes them."""
    status, _, err = run(capsys, "peak", str(profile), "--module", "jit_no")
    assert status == 3
    assert [name in err for name in ("jit_double(", "jit_triple(")] == [True, True]
