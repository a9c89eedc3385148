"""Whatever fails while an OOM is explained, it gets out, and a sentence says what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, OomReport, ProfileError, watch_hbm
from hbmwatch._explain import build
from hbmwatch._jax import profiler
from hbmwatch._xla.protos import HloProto, message_class
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests import programs
from tests.live import SIDE, fill

PEAK = 2**50 + 32


def report(logdir: Path, call: Callable[[jax.Array], Any] | None = None) -> OomReport:
    """The report of a failing call."""
    with pytest.raises(HbmOomError) as caught:
        (call or watch_hbm(fill, logdir=logdir))(jnp.ones(8))
    assert (caught.value.message.requested_bytes or 0) >= 2**50
    return caught.value.report


@pytest.mark.parametrize("logdir", ["file", "file/below", "/proc/hbmwatch", "nul\0byte"])
def test_a_logdir_that_cannot_be_written(logdir: str, tmp_path: Path) -> None:
    """The summary is still there, and the report says why there is no profile."""
    (tmp_path / "file").write_text("in the way")

    made = report(tmp_path / logdir)

    assert made.summary is not None and made.summary.peak_bytes == PEAK
    assert made.logdir is None
    (sentence,) = made.missing
    assert sentence.startswith("profile: ")
    assert "xprof --logdir" not in str(made)


def test_a_program_that_is_gone(tmp_path: Path) -> None:
    """A program that was freed before its failure showed is not in the profile."""

    def block(x: jax.Array) -> Any:
        with watch_hbm(tmp_path):
            out = jax.jit(lambda x: fill(x) @ jnp.ones(SIDE))(x)
            jax.clear_caches()
            return out.block_until_ready()

    made = report(tmp_path, block)

    assert made.summary is None
    (sentence,) = made.missing
    assert sentence.startswith("memory peak: the failing program is not in the profile")


def collects(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    """A profiler whose bytes are damaged on the way: the one thing that cannot be caused."""
    collect = profiler.collect
    monkeypatch.setattr(profiler, "collect", lambda: change(collect()))


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"\xff" * 64],
    ids=["empty", "truncated", "garbage"],
)
def test_a_damaged_profile(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump replaces a damaged profile; without a program to dump, the report says so."""
    collects(monkeypatch, damage)
    jitted = jax.jit(fill)

    def block(x: jax.Array) -> Any:
        with watch_hbm(tmp_path):
            return jax.block_until_ready(jitted(x))

    dumped, none = report(tmp_path), report(tmp_path, block)

    assert dumped.summary is not None and dumped.summary.peak_bytes == PEAK
    assert dumped.missing == ()
    assert none.summary is None
    assert [sentence.partition(":")[0] for sentence in none.missing] == ["memory peak"]


def test_no_profiler_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the private names of JAX that a session needs, the program is dumped."""
    from jax._src.lib import _profiler as jaxs

    monkeypatch.delattr(jaxs, "ProfilerSession")

    made = report(tmp_path)

    assert made.summary is not None and made.summary.peak_bytes == PEAK
    assert made.missing == ()


def test_a_program_that_takes_long_to_compile_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a minute the dump is not tried, and the report says so."""
    monkeypatch.setattr("hbmwatch._explain.capture._LONGEST_RECOMPILE_SECONDS", 0.0)
    collects(monkeypatch, lambda data: b"")

    made = report(tmp_path, watch_hbm(lambda x: fill(x) + 3, logdir=tmp_path))

    assert made.summary is None
    assert "did not recompile to recover the program: it takes about" in made.missing[0]


def unknown_event(xspace: bytes) -> bytes:
    """A profile of `fill` alone, with a heap event of a kind that nobody knows."""
    name, proto = next((n, p) for n, p in read_modules(xspace).items() if n.startswith("jit_fill("))
    program = message_class(HloProto).FromString(proto)
    assignment = program.buffer_assignment
    buffer = assignment.buffer_allocations[0].assigned[0].logical_buffer_id
    assignment.heap_simulator_traces.add().events.add(kind=7, buffer_id=buffer)
    number = int(name.partition("(")[2].rstrip(")"))
    return pack_modules([("jit_fill", number, program.SerializeToString())], "host")


XPROFS = {
    "not importable": ("raise ImportError('no xprof here')", "no xprof here"),
    "failing": ("raise RuntimeError('no such tool')", "no such tool"),
    "hanging": ("import time; time.sleep(60)", "did not answer within 2 s"),
    "crashing": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
}


@pytest.mark.slow
@pytest.mark.parametrize("xprof", XPROFS)
def test_a_program_that_no_reader_reads(
    xprof: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where our reader refuses, XProf is asked in its child; a stand-in fails in each way."""
    code, said = XPROFS[xprof]
    (tmp_path / "lib" / "xprof").mkdir(parents=True)
    (tmp_path / "lib" / "xprof" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    if xprof == "hanging":  # the others answer, but may take long to start on a busy machine
        monkeypatch.setattr(build, "_SECOND_READER_SECONDS", 2.0)
    collects(monkeypatch, unknown_event)

    made = report(tmp_path)

    assert made.summary is None
    own, second = made.missing
    assert own.startswith("memory peak: ") and "event of kind 7" in own
    assert second.startswith("memory peak by XProf: ") and said in second
    assert capfd.readouterr().err == ""


@programs.needs_xprof
def test_a_dumped_program_that_our_reader_refuses_is_read_by_xprof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XProf is asked for the module by the name that it has in the kept profile.

    The refusal is a stand-in: what makes our reader refuse, XProf refuses too.
    """

    def refuse(*_: object) -> None:
        raise ProfileError("refused")

    collects(monkeypatch, lambda data: b"")
    monkeypatch.setattr("hbmwatch._explain.build.peak_summary", refuse)

    made = report(tmp_path)

    assert made.summary is not None and made.summary.peak_bytes == PEAK
    assert made.missing == ("memory peak: refused",)


@pytest.mark.slow
def test_nothing_is_printed_beyond_what_the_bare_call_prints(tmp_path: Path) -> None:
    """A process that catches the OOM has the same stderr with the watch as without."""
    code = (
        "import sys, jax, jax.numpy as jnp; from hbmwatch import watch_hbm\n"
        "fill = lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1\n"
        "step = watch_hbm(fill, logdir=sys.argv[2]) if sys.argv[1] == 'ours' else jax.jit(fill)\n"
        "try: step(jnp.ones(8)).block_until_ready()\n"
        "except jax.errors.JaxRuntimeError as error: print(type(error).__name__)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code, who, tmp_path], capture_output=True, text=True)
        for who in ("bare", "ours")
    ]

    bare, ours = runs
    assert ours.stdout == "HbmOomError\n"
    assert bare.stdout != ours.stdout
    assert ours.stderr == bare.stderr
