"""The programs of tests/oom_programs, compiled once per test run, and their findings."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import find_findings
from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._messages.parse import parse_oom
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import Finding
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from tests.oom_programs import CASES, Case
from tests.sharing import once

# Repaired programs get so little memory that the compiler gives up at once.
TINY_MIB = 1
# What JAX says of some of the programs, on purpose.
UNUSABLE = "ignore:Some donated buffers were not usable"


class Compiled(NamedTuple):
    """What a compile leaves: XLA's proto, the error, and what is known of the call."""

    hlo_proto: bytes
    error: str
    call: CallInfo


class Explained(NamedTuple):
    """A program that was compiled, and what was concluded from it."""

    program: Program
    summary: PeakSummary
    message: OomMessage
    call: CallInfo
    findings: tuple[Finding, ...]

    @property
    def facts(self) -> ProgramFacts:
        """Fresh facts of the program, from which nothing is derived yet."""
        return ProgramFacts(self.program, self.summary, self.message, self.call)


def params(cases: Iterable[Case]) -> list[Any]:
    """Cases as parameters of a test, each with the mark of its compiler."""
    return [
        pytest.param(case, id=case.name, marks=getattr(pytest.mark, case.platform))
        for case in cases
    ]


def named(name: str) -> Case:
    """A case by its name."""
    return next(case for case in CASES if case.name == name)


@functools.cache
def explained(name: str, fault: bool = True) -> Explained:
    """A case, or its repaired twin."""
    case = named(name)
    limit = case.limit_mib if fault else TINY_MIB
    compiled = once(
        f"oom program {name} {fault}",
        lambda: compile_program(case.build(fault), limit if case.platform == "tpu" else None),
    )
    return conclude(compiled)


def explain(lowered: Any, limit_mib: int | None = None) -> Explained:
    """Another program."""
    return conclude(compile_program(lowered, limit_mib))


def compile_program(lowered: Any, limit_mib: int | None) -> Compiled:
    """Compile with a limit, and read what the compiler dumped, failed or not."""
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        options |= {"xla_dump_hlo_pass_re": "^$"}
        options |= {"xla_tpu_max_hbm_size_mib": str(limit_mib)} if limit_mib else {}
        try:
            lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as failure:
            error = str(failure)
        dumps = sorted(Path(folder).glob("*after_optimizations.hlo.pb"))
        proto = max(dumps, key=lambda file: file.stat().st_size).read_bytes()
    return Compiled(proto, error, call_info(lowered))


def conclude(compiled: Compiled) -> Explained:
    """Read the program, and find what to change."""
    program = parse_program(compiled.hlo_proto, "jit_step(0)")
    summary = peak_summary(program)
    message = (parse_oom(compiled.error) if compiled.error else None) or OomMessage("")
    findings = find_findings(ProgramFacts(program, summary, message, compiled.call))
    return Explained(program, summary, message, compiled.call, findings)


def slugs(findings: Iterable[Finding]) -> list[str]:
    """The slugs, in order."""
    return [finding.slug for finding in findings]
