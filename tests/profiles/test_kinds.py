"""What is given to `peak` besides profiles: XLA's dump, Memory Viewer's JSON, pprof, texts."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hbmwatch import PeakSummary, ProfileError, load_peak_summary
from hbmwatch._profiles import xprof
from hbmwatch._profiles.listing import Listing, Row
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from tests import programs
from tests.sharing import once

_STEP = """
import sys
import jax
import jax.numpy as jnp

def step(x):
    return jnp.outer(x, x) * 3

x = jnp.ones(3000)
jax.jit(step).lower(x).compile()
kept = jnp.ones((512, 1024))
jax.profiler.save_device_memory_profile(sys.argv[1] + "/memory.prof")
"""


@pytest.fixture(scope="session")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with XLA's dump of a step as protos, as texts, and a device memory profile."""
    folder = tmp_path_factory.mktemp("dump")
    script = folder / "train.py"
    script.write_text(_STEP)
    for name, more in (("protos", " --xla_dump_hlo_as_proto"), ("texts", "")):
        flags = f"--xla_dump_to={folder / name}{more}"
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, str(script), str(folder)]
        subprocess.run(command, env=environment, check=True, timeout=250)
    return folder


def refusal(path: Path) -> str:
    """Why a file has no peak."""
    with pytest.raises(ProfileError) as caught:
        load_peak_summary(path)
    assert "damaged" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path} ")


@pytest.mark.slow
def test_a_dump_of_protos_has_the_peak_of_each_compiled_module(dumped: Path) -> None:
    """The folder, or one of its files; modules are numbered as XLA numbers its dump."""
    summary = load_peak_summary(dumped / "protos", module="jit_step")
    (file,) = (dumped / "protos").glob("*jit_step.cpu_after_optimizations.hlo.pb")
    number = int(file.name.partition(".")[0].removeprefix("module_"))
    assert summary == peak_summary(parse_program(file.read_bytes(), f"jit_step({number})"))
    assert summary == load_peak_summary(file)
    assert (summary.output_bytes, summary.program_id) == (4 * 3000**2, number)
    renamed = dumped / "renamed.pb"
    renamed.write_bytes(file.read_bytes())
    assert load_peak_summary(renamed).peak_bytes == summary.peak_bytes
    (before,) = (dumped / "protos").glob("*jit_step.before_optimizations.hlo.pb")
    assert "has no buffer assignment" in refusal(before)
    (dumped / "unfinished").mkdir()
    before.rename(dumped / "unfinished" / before.name)
    assert "a dump of XLA of programs that were not compiled" in refusal(dumped / "unfinished")


@pytest.mark.slow
def test_a_dump_of_texts_says_how_to_get_protos(dumped: Path) -> None:
    """The folder, the report with its total, and any other text."""
    texts = dumped / "texts"
    assert "it is a dump of XLA in text: add --xla_dump_hlo_as_proto" in refusal(texts)
    (report,) = texts.glob("*jit_step*memory-usage-report.txt")
    assert refusal(report).startswith("is XLA's memory usage report: 34.3 MiB")
    largest = listing_of(report).rows[0]
    assert largest.size_bytes == pytest.approx(4 * 3000**2, rel=0.01)
    assert "maybe-live-out" in largest.what or "f32[3000,3000]" in largest.what
    (text,) = texts.glob("*jit_step.cpu_after_optimizations.txt")
    assert refusal(text).startswith("is text, not a profile: `hbmwatch explain` reads logs")


@pytest.mark.slow
def test_a_device_memory_profile_says_what_is_live(dumped: Path) -> None:
    """The bytes by kind; and by the lines and functions that made them, as rows."""
    listing = listing_of(dumped / "memory.prof")
    assert str(listing).removeprefix(f"{dumped / 'memory.prof'} ") == (
        "is a device memory profile, as jax.profiler.save_device_memory_profile writes it: 2 MiB "
        "of buffers on 1 device when it was taken. It holds no program and no shapes, so it has "
        "no peak; pprof shows the stacks"
    )
    assert listing.rows == (
        Row(4 * 512 * 1024, 1, "buffer of train.py:11, in <module>"),
        Row(4 * 3000, 1, "buffer of train.py:9, in <module>"),
    )


@pytest.mark.slow
def test_a_memory_usage_report_as_a_proto_is_named(dumped: Path) -> None:
    """With its total and allocations; what is not there yet in an older jax is not tested."""
    found = [*(dumped / "protos").glob("*jit_step*memory-usage-report.pb")]
    if not found:
        pytest.skip("this jaxlib dumps no memory usage report as a proto")
    listing = listing_of(found[0])
    sentence = str(listing).removeprefix(f"{found[0]} ")
    assert sentence.startswith("is XLA's memory usage report: 34.3 MiB. It holds no program, so")
    assert listing.rows[0].size_bytes == 4 * 3000**2
    assert listing.rows[0].what


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no memory space"),
        (b"\n\x0b\x08" + b"\xf9" + b"\xff" * 8 + b"\x01", "has a negative size"),
        (b"\n\x0d\x1a\x0b\x10" + b"\xf9" + b"\xff" * 8 + b"\x01", "has a negative size"),
    ],
)
def test_a_usage_report_that_cannot_be_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    """No sentence without a size, and none with fewer than 0 bytes."""
    file = tmp_path / "module_0007.jit_step.memory-usage-report.pb"
    file.write_bytes(content)
    assert refusal(file) == f"is no memory usage report of XLA: it {problem}"


@pytest.mark.slow
def test_a_device_memory_profile_need_not_be_compressed(dumped: Path) -> None:
    """As pprof reads it, it may be unzipped."""
    file = dumped / "memory.pb"
    file.write_bytes(gzip.decompress((dumped / "memory.prof").read_bytes()))
    compressed = listing_of(dumped / "memory.prof")
    listing = listing_of(file)
    assert listing.rows == compressed.rows
    assert refusal(file) == str(compressed).removeprefix(f"{dumped / 'memory.prof'} ")


OLD_USAGE = """Total bytes used: 16777236 (16.00MiB)

Allocations sorted by size:

cumulative_size; total_size - cumulative_size; allocation
------------------------------------------------------------------------------
  12.00MiB( 60%);    4.00MiB; allocation 15: size 12.00MiB, preallocated-temp:
  16.00MiB(100%);        20B; allocation 0: size 4.00MiB, parameter 1, shape |f32[1024,1024]|:
  16.00MiB(100%);         0B; allocation 3: size 20B, thread-local:


Allocations sorted by size with their values:
allocation 15: size 12.00MiB, preallocated-temp:

\tcumulative_size;       size;       offset; used_by_n_values; shapes_list
\t------------------------------------------------------------
\t  8.00MiB( 67%);    8.00MiB;            0;                3; 3xf32[2048,1024]
"""


def test_the_allocations_of_a_usage_report_are_listed(tmp_path: Path) -> None:
    """Of an older jax, whose report names them; with a sentence on what it lacks."""
    file = tmp_path / "module_0007.jit_step.memory-usage-report.txt"
    file.write_text(OLD_USAGE)
    listing = listing_of(file)

    assert listing.rows == (
        Row(12 * 2**20, None, "allocation 15: preallocated-temp"),
        Row(4 * 2**20, None, "allocation 0: parameter 1, shape |f32[1024,1024]|"),
        Row(20, None, "allocation 3: thread-local"),
    )
    assert listing.text(2) == (
        "  12 MiB  allocation 15: preallocated-temp\n"
        "   4 MiB  allocation 0: parameter 1, shape |f32[1024,1024]|\n"
        "  and 1 more row; --top shows more"
    )


def listing_of(path: Path) -> Listing:
    """What can be read of a file that has no program."""
    with pytest.raises(Listing) as caught:
        load_peak_summary(path)
    return caught.value


def viewer_json() -> str:
    """The JSON that XProf's Memory Viewer has of a program."""
    found = programs.compiled("train", "cpu")
    (result,) = xprof.preprocess_results(found.xspace, [(found.name, "hbm")])
    return json.dumps(result)


@programs.needs_xprof
@pytest.mark.slow
def test_the_json_of_memory_viewer_has_a_peak(tmp_path: Path) -> None:
    """Every figure is that of the profile that it was made from."""
    found = programs.compiled("train", "cpu")
    file = tmp_path / "memory_viewer.json"
    file.write_text(once("memory-viewer", viewer_json))
    expected: PeakSummary = peak_summary(found.program)
    summary = load_peak_summary(file)
    assert (summary.peak_bytes, summary.ops) == (expected.peak_bytes, expected.ops)
    assert summary.heap_bytes.tolist() == expected.heap_bytes.tolist()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"schema": 1}', "is a stored report: `hbmwatch explain` shows it"),
        (b"[1, 2]", "is JSON, but not of XProf's Memory Viewer"),
        (b"{step 7}", "is text, not a profile"),
        (b"step 7\n", "is text, not a profile: `hbmwatch explain` reads logs, and `hbmwatch peak`"),
        (b"\nstep 7\n", "is text, not a profile: `hbmwatch explain` reads logs"),
        (b"\x1b[1mstep 7\n", "is text, not a profile: `hbmwatch explain` reads logs"),
        (gzip.compress(b"step 7", mtime=0), "is compressed: decompress it first"),
        (gzip.compress(b"step 7" * 99, mtime=0)[:-1], "is compressed, and its end is missing"),
        (b"\x1f\x8b", "is compressed, and its end is missing"),
        (b"\x1f\x8bnothing", "is compressed and cannot be read"),
        (b"Total bytes used: 2048 (2.0KiB)\n", "is XLA's memory usage report: 2 KiB. It holds"),
    ],
)
def test_what_is_no_profile_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    """A sentence says what the file is, and what reads it."""
    file = tmp_path / "file"
    file.write_bytes(content)
    assert refusal(file).startswith(expected)
