"""Adds roles, roll-up and findings to a report; each may fail separately."""

from __future__ import annotations

import dataclasses

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._explain.failure import Measure
from hbmwatch._explain.problems import Problems
from hbmwatch._findings.rank import find_findings
from hbmwatch._findings.verdict import verdict
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._report.report import OomReport
from hbmwatch._xla.peak import other_ops
from hbmwatch._xla.program import Program


def add_findings(
    report: OomReport,
    summary: PeakSummary,
    program: Program,
    call: CallInfo | None,
    problems: Problems,
    measure: Measure = tuple,
) -> OomReport:
    """The report with this peak, the roles of its buffers, the roll-up and the findings.

    Args:
        report: The report so far, with the message and the device.
        summary: The program's peak in HBM.
        program: The program.
        call: What is known of the call.
        problems: Gets a sentence for each step that fails.
        measure: Adds to the findings what was measured of their remedies.
    """
    attempt, failed = problems.try_or_default, list[Exception]()
    facts = ProgramFacts(program, summary, report.message, call, report.device)
    summary = attempt("buffer roles", summary, with_roles, facts)
    others = attempt("buffers at other program points", None, _other_ops, facts)
    summary = dataclasses.replace(summary, other_ops=others)
    findings = attempt("findings", (), find_findings, facts, failed)
    if report.program_is_guess:  # and with it all that its figures say
        findings = tuple(dataclasses.replace(found, certainty="hint") for found in findings)
    else:
        findings = attempt("plan", findings, measure, findings)
    sentence = attempt("verdict", "", verdict, facts, findings)
    for error in failed:
        problems.record("findings", error)
    return dataclasses.replace(
        report,
        summary=summary,
        rollup=attempt("memory by role", {}, rollup, summary),
        findings=findings,
        verdict=sentence,
    )


def _other_ops(facts: ProgramFacts) -> tuple[PeakOp, ...]:
    """The buffers that are live at other program points only, with their roles."""
    others = dataclasses.replace(facts.summary, ops=other_ops(facts.program))
    return with_roles(facts.elsewhere(others)).ops
