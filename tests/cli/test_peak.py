"""`hbmwatch peak`: the peak of a profile, as text, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hbmwatch import OomReport, load_peak_summary
from hbmwatch._explain import conclude
from hbmwatch._xla.protos import XSpace, message_class
from hbmwatch._xla.xspace import pack_modules
from tests import programs
from tests.cli.support import run
from tests.xla.test_xprof_agreement import shared_profiles


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
    assert "note: This module has the highest peak of " in out
    assert f"profile: xprof --logdir={profile} --port=6006" in out


def test_what_could_not_be_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A damaged file and a damaged module: the largest may be among them."""
    files = {
        "a.xplane.pb": programs.compiled("train", "cpu").xspace,
        "b.xplane.pb": pack_modules([("jit_cut", 2, b"\x1a\x00")], "b"),
        "c.xplane.pb": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    status, out, err = run(capsys, "peak", str(tmp_path), "--json")

    assert (status, err) == (0, "")
    report = OomReport.from_dict(json.loads(out))
    assert report.notes[-1] == (
        "This module has the highest peak of the modules that could be read; --module shows "
        "another."
    )
    assert report.missing == (
        f"other modules: {tmp_path / 'c.xplane.pb'} is empty (0 bytes)",
        "other modules: the HloProto of jit_cut(2) holds no module (2 bytes)",
    )

    status, out, err = run(capsys, "diff", str(tmp_path / "a.xplane.pb"), str(tmp_path))

    assert (status, err) == (
        0,
        "".join(f"hbmwatch: {tmp_path}: {problem}\n" for problem in report.missing),
    )


def test_the_named_module_is_shown(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """--module takes a plain name, --top limits the rows."""
    _, out, _ = run(capsys, "peak", str(profile), "--module", "jit_double", "--top", "1")
    assert out.startswith("hbmwatch: memory peak of jit_double\n  Peak of jit_double: 781 KiB")
    assert "    and 1 more (391 KiB)" in out


def test_html_writes_a_page(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """--html leaves a page beside the text, with the limit that it draws."""
    page = tmp_path / "peak.html"
    status, out, _ = run(capsys, "peak", str(profile), "--html", str(page), "--limit", "1GiB")
    assert (status, bool(out)) == (0, True)
    html = page.read_text(encoding="utf-8")
    assert "<title>hbmwatch: memory peak of jit_triple: needs 34.3 MiB; limit 1.00 GiB" in html
    data = json.loads(html.partition(' id="data">')[2].partition("</script>")[0])
    assert data["message"]["limit_bytes"] == 2**30


def on_a_tpu(profile: bytes, folder: Path) -> Path:
    """A profile with the plane of a TPU v5e."""
    stats = [{"metadata_id": 1, "str_value": "TPU v5 Lite"}]
    names = [{"key": 1, "value": {"id": 1, "name": "device_type_string"}}]
    device = {"name": "/device:TPU:0", "stat_metadata": names, "stats": stats}
    file = folder / "tpu.xplane.pb"
    file.write_bytes(profile + message_class(XSpace)(planes=[device]).SerializeToString())
    return file


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("options", "device_limit", "message_limit"),
    [
        ([], 16126 * 2**20, None),
        (["--limit", "80GiB"], None, 80 * 2**30),
        (["--on", "v4"], None, 31485 * 2**20),
    ],
)
def test_a_profile_of_a_known_tpu_has_its_limit(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    device_limit: int | None,
    message_limit: int | None,
) -> None:
    """The page draws the line; whether the program fits is said for a given limit only."""
    program = programs.compiled("train", "tpu")
    file = on_a_tpu(program.xspace, tmp_path)  # with all programs of this process
    status, out, _ = run_peak(capsys, file, "--json", "--module", program.name, *options)
    report = OomReport.from_dict(json.loads(out))
    note = (
        "A program can use 15.75 GiB of the device that was profiled (TPU v5 lite; measured with "
        "libtpu 0.0.50); --limit checks another limit."
    )

    assert status == 0
    assert (note in report.notes) == (not options)
    assert report.device is not None
    assert (report.device.device_kind, report.device.limit_bytes) == ("TPU v5 lite", device_limit)
    assert report.message.limit_bytes == message_limit


def test_a_program_of_the_cpu_in_the_profile_of_a_tpu_has_no_limit(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """A process with a TPU may also run programs on its CPU."""
    (file,) = profile.glob("plugins/profile/*/*.xplane.pb")
    status, out, _ = run_peak(capsys, on_a_tpu(file.read_bytes(), tmp_path), "--json")
    report = OomReport.from_dict(json.loads(out))

    assert (status, report.device) == (0, None)
    assert "TPU" not in out


@pytest.mark.parametrize(
    ("name", "kind", "limit_bytes", "size"),
    [
        ("v6e_jax_host_offload", "TPU v6 lite", 31996 * 2**20, "31.25 GiB"),
        ("mi300x_jax_conv", "AMD GPU", 154606239744, "143.99 GiB"),
        ("mi355x_jax_transformer_engine", "AMD GPU", 299944250900, "279.34 GiB"),
    ],
)
def test_a_profile_with_allocations_has_the_allocators_limit(
    capsys: pytest.CaptureFixture[str], name: str, kind: str, limit_bytes: int, size: str
) -> None:
    """Of real devices; `diff` knows it, too."""
    files = [file for file in shared_profiles() if file.parts[-5] == name]
    if not files:
        pytest.skip("no profiles of real devices here; HBMWATCH_PROFILES can name their folder")
    status, out, _ = run_peak(capsys, files[0], "--json")
    report = OomReport.from_dict(json.loads(out))
    note = (
        f"A program can use {size} of the device that was profiled ({kind}; its allocator says so "
        "in the profile); --limit checks another limit."
    )

    assert (status, report.notes[0], report.message.limit_bytes) == (0, note, None)
    assert report.device is not None
    assert (report.device.device_kind, report.device.limit_bytes) == (kind, limit_bytes)
    _, out, _ = run(capsys, "diff", str(files[0]), str(files[0]), "--json")
    assert json.loads(out)["limit_bytes"] == limit_bytes


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


def test_the_run_and_the_host_are_named(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    """The text says which ones these are, and which others there are."""
    (file,) = profile.glob("plugins/profile/*/*.xplane.pb")
    for name in ("2026_03_01_10_00_00", "2026_03_02_10_00_00", "first"):
        for host in ("vm-0", "vm-1"):
            copy = tmp_path / "plugins" / "profile" / name / f"{host}.xplane.pb"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    status, out, _ = run_peak(capsys, tmp_path)
    assert status == 0
    assert ("Run 2026_03_02_10_00_00. For another one: --run 2026_03_01_10_00_00, first.") in out
    assert "Host vm-0." in out
    _, out, _ = run_peak(capsys, tmp_path, "--run", "first", "--host", "vm-1")
    assert "Run first. For another one: --run 2026_03_02_10_00_00, 2026_" in out
    assert "Host vm-1." in out
    assert run_peak(capsys, tmp_path, "--host", "vm-2")[0] == 3


def run_peak(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[int, str, str]:
    """`hbmwatch peak` of a path; the text without its line breaks."""
    status, out, err = run(capsys, "peak", str(path), *options)
    return status, " ".join(out.split()), err


@pytest.mark.parametrize(
    ("limit", "status", "figures", "verdict"),
    [
        ("1GiB", 0, "needs 34.3 MiB; limit 1.00 GiB", "The program fits 1.00 GiB: 990 MiB is left"),
        (
            "34MiB",
            1,
            "34 MiB; 352 KiB over the limit",
            "program does not fit 34 MiB: it needs 352 KiB",
        ),
    ],
)
def test_a_limit_gives_a_verdict(
    capsys: pytest.CaptureFixture[str],
    profile: Path,
    limit: str,
    status: int,
    figures: str,
    verdict: str,
) -> None:
    """The exit status says it too; fragmentation counts, as for the compiler."""
    ended, out, _ = run_peak(capsys, profile, "--limit", limit)
    assert ended == status
    assert figures in out, out
    assert verdict in out, out


@pytest.mark.tpu
def test_a_device_gives_a_verdict(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """Its memory is what preflight knows of it."""
    status, out, _ = run_peak(capsys, profile, "--on", "v5e")
    assert (status, "The program fits 15.75 GiB (v5e" in out) == (0, True)
    status, _, err = run_peak(capsys, profile, "--on", "v99")
    assert (status, "unknown target 'v99'" in err) == (3, True)


def test_what_has_no_program_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The sizes of XLA's memory usage report, and what it lacks; for a verdict it is an error."""
    file = tmp_path / "memory-usage-report.txt"
    file.write_text(
        "Memory Space: default (color=0)\nTotal bytes: 41943072 (40.00MiB)\n"
        "  cumulative_size;       size;       offset; used_by_n_values; shapes_list\n"
        "   16.00MiB( 67%);    8.00MiB;      8388608;                3; 3xf32[2048,1024]\n"
        "   32.00MiB(100%);   16.00MiB;            0;                2; f32[4096,1024]\n"
    )
    lacks = (
        f"hbmwatch: {file} is XLA's memory usage report: 40 MiB in default. It holds no program, "
        "so it has no peak; --xla_dump_hlo_as_proto in XLA_FLAGS dumps an .hlo.pb file, which "
        "has one\n"
    )

    assert run(capsys, "peak", str(file)) == (
        0,
        "  16 MiB  f32[4096,1024]\n   8 MiB  3xf32[2048,1024]\n",
        lacks,
    )
    assert run(capsys, "peak", str(file), "--limit", "1GiB") == (3, "", lacks)
