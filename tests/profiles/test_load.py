"""load_peak_summary: which file, which module, which reader."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import pytest

import hbmwatch
from hbmwatch import PeakSummary, ProfileError, load_peak_summary
from hbmwatch._profiles import runs
from hbmwatch._profiles.load import load_program
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules
from tests import programs

pytestmark = pytest.mark.tpu

Reader = Literal["hbmwatch", "xprof"]
READERS = ("hbmwatch", pytest.param("xprof", marks=programs.needs_xprof))


def keep(logdir: Path, xspace: bytes, run: str = "run", host: str = "host") -> Path:
    """Lay a profile down where `xprof --logdir` looks for it; returns the file."""
    folder = logdir / "plugins" / "profile" / run
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{host}.xplane.pb"
    file.write_bytes(xspace)
    return file


def module(name: str, program: str = "train", platform: str = "tpu") -> bytes:
    """A profile of one module, under a name of our own."""
    plain, _, number = name.rstrip(")").rpartition("(")
    proto = programs.compiled(program, platform).hlo_proto
    return pack_modules([(plain, int(number), proto)], "host")


def own(name: str, program: str = "train", platform: str = "tpu") -> PeakSummary:
    """The summary of that module."""
    proto = programs.compiled(program, platform).hlo_proto
    return peak_summary(parse_program(proto, name))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_folder_a_run_and_a_file_are_the_same(tmp_path: Path, reader: Reader) -> None:
    """The path may be the log folder, the run folder or the xplane; both readers give the same."""
    found = programs.compiled("train", "tpu")
    file = keep(tmp_path, found.xspace)
    expected = [peak_summary(found.program)] * 3
    places: list[Path | str] = [tmp_path, file.parent, str(file)]
    read = [load_peak_summary(place, module=found.name, reader=reader) for place in places]
    assert expected == read
    assert [file] == list(file.parent.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("failing", [False, True])
def test_a_profile_that_a_bare_trace_made(tmp_path: Path, failing: bool) -> None:
    """jax.profiler.trace around a step, whether it ran or ran out of memory."""

    @jax.jit
    def barely_traced(x: jax.Array) -> jax.Array:
        size = 2**24 if failing else 2**6
        return jnp.outer(jnp.zeros(size), jnp.zeros(size)).at[0, 0].add(x)

    with jax.profiler.trace(str(tmp_path)):
        try:
            jax.block_until_ready(barely_traced(jnp.float32(1)))
        except jax.errors.JaxRuntimeError:
            assert failing
        else:
            assert not failing
    summary = load_peak_summary(tmp_path, module="jit_barely_traced")
    assert summary.output_bytes == 4 * (2**48 if failing else 2**12)


def test_of_several_runs_the_newest_by_name_is_read(tmp_path: Path) -> None:
    """Copying changes the times of files; a run that is not named by its time is older."""
    runs = ["2026_03_01_10_00_00", "2026_03_02_09_00_00", "baseline", "2025_12_31_23_59_59_x"]
    for number, run in enumerate(runs):
        file = keep(tmp_path, module(f"jit_f({number})"), run)
        os.utime(file, (1_700_000_000 - number, 1_700_000_000 - number))
    keep(tmp_path, module("jit_i(9)"), "2027_01_01_00_00_00").unlink()
    keep(tmp_path, module("jit_i(9)"), "2027_01_02_00_00_00").unlink()
    (tmp_path / "plugins/profile/2027_01_02_00_00_00/host.xplane.pb").symlink_to("nowhere")
    assert load_peak_summary(tmp_path).program_id == 1
    for number, run in enumerate(runs):
        assert load_peak_summary(tmp_path, run=run).program_id == number
    with pytest.raises(ProfileError) as caught:
        load_peak_summary(tmp_path, run="other")
    choices = "2026_03_02_09_00_00, 2026_03_01_10_00_00, 2025_12_31_23_59_59_x, baseline"
    assert str(caught.value).endswith(f"has no run 'other': choose one of {choices}")


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """Experiments beside each other may have started at one time."""
    for number, experiment in enumerate(("a", "b")):
        keep(tmp_path / experiment, module(f"jit_f({number})"), "2026_03_01_10_00_00")
    assert load_peak_summary(tmp_path, run="a/2026_03_01_10_00_00").program_id == 0
    assert load_peak_summary(tmp_path, run="b/2026_03_01_10_00_00").program_id == 1
    with pytest.raises(ProfileError, match="has several runs '2026_03_01_10_00_00': choose one of"):
        load_peak_summary(tmp_path, run="2026_03_01_10_00_00")


def test_a_host_is_chosen_by_its_name(tmp_path: Path) -> None:
    """Its modules alone count; without a name the host with the largest peak."""
    keep(tmp_path, module("jit_f(1)", "small"), host="vm-0")
    keep(tmp_path, module("jit_f(2)"), host="vm-1")
    loaded = load_program(tmp_path)
    assert (loaded.host, loaded.other_hosts, loaded.place.run) == ("vm-1", ("vm-0",), "run")
    assert load_peak_summary(tmp_path, host="vm-0").program_id == 1
    with pytest.raises(ProfileError, match="has no host 'vm-2': choose one of vm-0, vm-1"):
        load_peak_summary(tmp_path, host="vm-2")


def test_a_memory_space_without_buffers_is_an_error(tmp_path: Path) -> None:
    """0 bytes of an arbitrary module would say nothing; the error lists what there is."""
    file = keep(tmp_path, module("jit_f(1)", platform="cpu"))
    with pytest.raises(ProfileError, match="has nothing in vmem; its memory spaces: hbm$"):
        load_peak_summary(file, memory_space="vmem")


def test_runs_that_are_deleted_meanwhile_are_no_error(tmp_path: Path) -> None:
    """Another process drops its old runs; the newest one that is left is read."""
    profile = module("jit_f(1)", "small", "cpu")
    kept = [runs.keep(profile, str(tmp_path), 0) for _ in range(2)]
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            kept.append(runs.keep(profile, str(tmp_path), 0))
            shutil.rmtree(kept.pop(0).run)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    outcomes = set()
    for _ in range(100):
        try:
            outcomes.add(load_peak_summary(tmp_path).program_id)
        except ProfileError:
            outcomes.add(None)  # three times in a row
    stop.set()
    for thread in threads:
        thread.join()
    assert outcomes <= {1, None} and 1 in outcomes


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    """A FIFO would wait and a device has no end; the other hosts are read."""
    run = keep(tmp_path, module("jit_f(1)", "small", "cpu")).parent
    odd = run / "a.xplane.pb"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        odd.mkdir()
    assert load_peak_summary(tmp_path).program_id == 1
    with pytest.raises(ProfileError, match="cannot read .*a.xplane.pb"):
        load_peak_summary(odd if kind != "folder" else run, host=None if kind != "folder" else "a")


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_of_several_modules_the_largest_peak_is_taken(tmp_path: Path, reader: Reader) -> None:
    """Of all hosts, unless a module is asked for; one damaged host file does not hide the rest."""
    keep(tmp_path, module("jit_step(1)", "small"), host="one")
    keep(tmp_path, module("jit_train_step(2)"), host="two")
    keep(tmp_path, module("jit_train_step(3)", "donated")[:-100], host="three")
    assert load_peak_summary(tmp_path, reader=reader) == own("jit_train_step(2)")
    asked = load_peak_summary(tmp_path, module="jit_step", reader=reader)
    assert asked == own("jit_step(1)", "small")


def test_a_module_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    """The largest of those that can be read; asked for by name, the broken one says why."""
    broken = pack_modules([("jit_broken", 1, b"\xff\xff")], "host")
    file = keep(tmp_path, broken + module("jit_train(2)"))
    assert load_peak_summary(file) == own("jit_train(2)")
    with pytest.raises(ProfileError, match=r"the HloProto of jit_broken\(1\) is damaged"):
        load_peak_summary(file, module="jit_broken")


def test_one_name_for_several_modules_is_ambiguous(tmp_path: Path) -> None:
    """ "jit_step" with two signatures: the error lists what to ask for, and its modules."""
    there = ("jit_step(8)", "jit_step(10)", "jit_other(2)")
    keep(tmp_path, b"".join(module(name) for name in there))
    with pytest.raises(ProfileError) as caught:
        load_peak_summary(tmp_path, module="jit_step")
    assert str(caught.value).endswith("choose one of jit_step(8), jit_step(10)")
    assert (caught.value.path, caught.value.modules) == (str(tmp_path), there)
    assert load_peak_summary(tmp_path, module="jit_step(10)") == own("jit_step(10)")
    assert load_peak_summary(tmp_path, module="jit_other").program_id == 2


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_hosts_with_different_programs_of_one_name(tmp_path: Path, reader: Reader) -> None:
    """GPU ids are small counters: jit_train_step(4) of two hosts get different numbers."""
    keep(tmp_path, module("jit_train_step(4)"), host="a")
    keep(tmp_path, module("jit_train_step(4)", "donated"), host="b")
    keep(tmp_path, module("jit_train_step(4)"), host="c")
    choice = r"choose one of jit_train_step\(4\) #1, jit_train_step\(4\) #2$"
    with pytest.raises(ProfileError, match=choice):
        load_peak_summary(tmp_path, module="jit_train_step(4)")
    for number, program in [(1, "train"), (2, "donated")]:
        wanted = f"jit_train_step(4) #{number}"
        summary = load_peak_summary(tmp_path, module=wanted, reader=reader)
        assert summary == own("jit_train_step(4)", program)


def test_a_module_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    """At most twenty of them in the text; all of them in the error's modules."""
    names = tuple(f"jit_f({number})" for number in range(30))
    keep(tmp_path, pack_modules([("jit_f", number, b"x") for number in range(30)], "host"))
    with pytest.raises(ProfileError, match=r"holds no module 'jit_g'.* and 10 more$") as caught:
        load_peak_summary(tmp_path, module="jit_g")
    assert caught.value.modules == names


def test_what_holds_no_profile_is_a_sentence(tmp_path: Path) -> None:
    """A path that is not there, a folder without runs, a file cut short, one without modules."""
    with pytest.raises(ProfileError, match="there is no profile at .*nowhere: no such file"):
        load_peak_summary(tmp_path / "nowhere")
    with pytest.raises(ProfileError, match="expected plugins/profile/RUN/HOST.xplane.pb"):
        load_peak_summary(tmp_path)
    file = keep(tmp_path, module("jit_f(1)")[:-1])
    with pytest.raises(ProfileError, match=r"host\.xplane\.pb is damaged"):
        load_peak_summary(tmp_path)
    file.write_bytes(b"")
    with pytest.raises(ProfileError, match=r"host\.xplane\.pb is empty \(0 bytes\)"):
        load_peak_summary(tmp_path)
    file.write_bytes(pack_modules([], "host"))
    with pytest.raises(ProfileError, match="holds no HLO module"):
        load_peak_summary(tmp_path)


def test_a_folder_is_searched_six_levels_deep(tmp_path: Path) -> None:
    """A run below six folders is found, one below seven is not."""
    logdir = tmp_path.joinpath(*"123456")
    keep(logdir, module("jit_f(1)"))

    assert load_peak_summary(tmp_path).program_id == 1
    (tmp_path / "1").rename(tmp_path / "0")
    (tmp_path / "1").mkdir()
    (tmp_path / "0").rename(tmp_path / "1" / "1")
    with pytest.raises(ProfileError, match=r"in .*: expected .*, at most 6 folders deep$"):
        load_peak_summary(tmp_path)


def test_a_search_ends_in_a_folder_of_any_size(tmp_path: Path) -> None:
    """After 20,000 files and folders; the error says so, and a run near the top is still found."""
    (tmp_path / "deep" / "deep").mkdir(parents=True)
    for number in range(20_000):
        (tmp_path / "deep" / f"{number}").touch()
    keep(tmp_path / "deep" / "deep", module("jit_f(1)"))

    with pytest.raises(ProfileError, match="among the first 20000 files and folders: expected"):
        load_peak_summary(tmp_path)
    keep(tmp_path, module("jit_g(2)"))
    assert load_peak_summary(tmp_path).program_id == 2


def test_choices_that_there_are_not_are_value_errors(tmp_path: Path) -> None:
    """A memory space or a reader that is not known lists those that are, before any reading."""
    with pytest.raises(ValueError, match="unknown memory_space 'hmb': choose one of 'hbm', 'vmem'"):
        load_peak_summary(tmp_path, memory_space="hmb")
    with pytest.raises(ValueError, match="unknown reader 'x': choose one of 'hbmwatch', 'xprof'"):
        load_peak_summary(tmp_path, reader="x")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_every_memory_space_can_be_asked_for(tmp_path: Path, reader: Reader) -> None:
    """VMEM of a program that prefetches to it, with buffers that HBM does not have."""
    found = programs.compiled("small", "tpu")
    keep(tmp_path, found.xspace)
    summary = load_peak_summary(tmp_path, module=found.name, memory_space="vmem", reader=reader)
    assert summary == peak_summary(found.program, "vmem")
    assert summary.peak_bytes > 0 and {op.memory_space for op in summary.ops} == {"vmem"}


@pytest.mark.parametrize("reader", READERS)
def test_a_profile_in_a_folder_that_cannot_be_written(tmp_path: Path, reader: Reader) -> None:
    """Neither reader writes beside the profile: a read-only copy is read as well."""
    found = programs.compiled("train", "tpu")
    file = keep(tmp_path, found.xspace)
    file.chmod(0o444)
    file.parent.chmod(0o555)
    try:
        summary = load_peak_summary(tmp_path, module=found.name, reader=reader)
    finally:
        file.parent.chmod(0o755)
    assert summary == peak_summary(found.program)


@pytest.mark.parametrize(
    ("closed", "asked", "named"),
    [
        ("", "", ""),
        ("", "plugins", "plugins"),
        ("plugins/profile", "", "plugins/profile"),
        ("plugins/profile/RUN", "", "plugins/profile/RUN"),
    ],
)
def test_a_folder_that_cannot_be_read_is_not_called_empty(
    closed: str, asked: str, named: str
) -> None:
    """The error names the folder, and says why it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="hbmwatch-test-") as folder:
        Path(folder).chmod(0o755)
        logdir = Path(folder) / "logdir"
        (logdir / "plugins/profile/RUN").mkdir(parents=True)
        (logdir / "plugins/profile/RUN/host.xplane.pb").write_bytes(b"")
        with unreadable(logdir / closed), pytest.raises(ProfileError) as refused:
            load_peak_summary(logdir / asked)
        assert str(refused.value) == f"cannot read {logdir / named}: Permission denied"


@contextlib.contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """In the body the folder cannot be read, also by a test that runs as root."""
    folder.chmod(0)
    user = os.geteuid()
    try:
        if not user:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def test_it_is_public() -> None:
    """hbmwatch.load_peak_summary is the one that is tested here."""
    assert hbmwatch.load_peak_summary is load_peak_summary
