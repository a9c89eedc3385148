"""Ratios of processor time beside a stored base; `pytest -m benchmark -n0` runs them.

A ratio compares two pieces of work of one run, so that it does not depend on the machine. The base
is in benchmarks/base.json; HBMWATCH_UPDATE_BASE=1 rewrites it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks._timing import fastest
from benchmarks.fold import write_reports
from benchmarks.hot_path import bare_wrapper, nothing, work
from benchmarks.scale import MODULES, hlo_proto, measure
from hbmwatch import watch_hbm
from hbmwatch._cli.main import main
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests.live import SMALL, fill, oom_of

pytestmark = pytest.mark.benchmark

BASE = Path(__file__).parents[1] / "benchmarks" / "base.json"
TRIES = 5
# From run to run the medians differ by up to a fifth.
ALLOWED = 1.3


def check(name: str, ratio: Callable[[], float]) -> None:
    """The median of a few tries of a ratio is not much above the stored one."""
    median = statistics.median(ratio() for _ in range(TRIES))
    base = json.loads(BASE.read_text())
    if os.environ.get("HBMWATCH_UPDATE_BASE") == "1":
        BASE.write_text(
            json.dumps(base | {name: round(median, 2)}, indent=2, sort_keys=True) + "\n"
        )
    else:
        assert median <= ALLOWED * base[name], f"{name}: {median:.2f}, was {base[name]:.2f}"


def added(bare: Any, wrapped: Any, watched: Any, argument: Any, calls: int = 400) -> float:
    """What a watch adds to the bare call, as a multiple of what the bare wrapper adds."""
    steps = {"bare": bare, "wrapped": wrapped, "watched": watched}
    cases = {name: lambda step=step: step(argument) for name, step in steps.items()}
    best = fastest(cases, runs=60, calls=calls, clock=time.thread_time)
    floor = max(best["wrapped"] - best["bare"], 1e-9)
    return (best["watched"] - best["bare"]) / floor


@pytest.mark.parametrize("leaves", [1, 100, 1000])
def test_a_watch_adds_what_a_bare_wrapper_adds(leaves: int) -> None:
    """Around a function that does nothing, however many leaves its argument has."""
    argument = [SMALL] * leaves
    watched = watch_hbm(nothing, jit=False)

    check(
        f"watch / bare wrapper (leaves: {leaves})",
        lambda: added(nothing, bare_wrapper(nothing), watched, argument),
    )


def test_a_watched_jit_call_adds_what_a_bare_wrapper_adds() -> None:
    """Around a call of a jitted function."""
    jitted = jax.jit(work)
    watched = watch_hbm(jitted)

    check(
        "watched jit / bare wrapper",
        lambda: added(jitted, bare_wrapper(jitted), watched, [SMALL]),
    )


def test_a_watched_compiled_program_is_as_fast_as_the_bare_one() -> None:
    """The watch replaces the method through which JAX calls it."""
    compiled = jax.jit(work).lower([SMALL]).compile()
    watched = watch_hbm(work).lower([SMALL]).compile()

    def ratio() -> float:
        cases = {"bare": lambda: compiled([SMALL]), "watched": lambda: watched([SMALL])}
        best = fastest(cases, runs=60, calls=400, clock=time.thread_time)
        return best["watched"] / best["bare"]

    check("watched program / bare program", ratio)


def test_reading_grows_no_worse_than_n_log_n() -> None:
    """Ten times the buffers: parse, peak, findings and text together."""
    small, large = hlo_proto(2_000), hlo_proto(20_000)

    check(
        "20,000 buffers / 2,000 buffers",
        lambda: sum(measure(large)[:-1]) / sum(measure(small)[:-1]),
    )


def test_folding_takes_little_more_than_reading(tmp_path: Path) -> None:
    """A thousand reports: the whole of `fold`, and the JSON parser alone."""
    write_reports(tmp_path, 1_000)
    files = list(tmp_path.rglob("report.json"))

    def parse() -> None:
        for file in files:
            json.loads(file.read_bytes())

    def fold() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            main(["fold", str(tmp_path)])

    def ratio() -> float:
        best = fastest({"parse": parse, "fold": fold}, runs=2, calls=1, clock=time.thread_time)
        return best["fold"] / best["parse"]

    check("fold of 1,000 reports / parsing them", ratio)


def test_a_long_notebook_s_profile_is_read_for_one_module() -> None:
    """One of 500 modules is found without parsing the others."""
    proto = hlo_proto(1_000)
    modules = [("jit_step", 7 + n, proto) for n in range(MODULES)]
    xspace = pack_modules(modules, "host")

    def one() -> object:
        return peak_summary(parse_program(proto, "jit_step(7)"))

    def of_many() -> object:
        return peak_summary(parse_program(read_modules(xspace)["jit_step(7)"], "jit_step(7)"))

    def ratio() -> float:
        best = fastest({"one": one, "of many": of_many}, runs=5, calls=1, clock=time.thread_time)
        return best["of many"] / best["one"]

    check("one of 500 modules / one module", ratio)


def test_a_failure_costs_less_than_compiling_the_step(tmp_path: Path) -> None:
    """What a watch adds to a failing call, beside what JAX takes to compile the smallest step."""
    watched = watch_hbm(fill, logdir=tmp_path)
    bare = jax.jit(fill)

    def failing() -> None:
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(bare(SMALL))

    def compiling() -> None:
        jax.jit(lambda x: fill(x) * 2).lower(SMALL).compile()

    def ratio() -> float:
        cases = {
            "bare": failing,
            "watched": lambda: oom_of(watched, SMALL),
            "compile": compiling,
        }
        best = fastest(cases, runs=5, calls=2, clock=time.process_time)
        return (best["watched"] - best["bare"]) / best["compile"]

    check("what a failure adds / a compile", ratio)
