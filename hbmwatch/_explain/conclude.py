"""What follows from a program and its peak: roles, roll-up, findings, each had if it can be."""

from __future__ import annotations

import dataclasses

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._explain.problems import Problems
from hbmwatch._findings.rank import find_findings
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._records.peak import PeakSummary
from hbmwatch._report.report import OomReport
from hbmwatch._xla.program import Program


def add_findings(
    report: OomReport,
    summary: PeakSummary,
    program: Program,
    call: CallInfo | None,
    missing: Problems,
) -> OomReport:
    """The report with this peak, the roles of its buffers, the roll-up and the findings.

    Args:
        report: What is known besides: the message and the device.
        summary: The program's peak in HBM.
        program: The program.
        call: What is known of the call.
        missing: Takes a sentence for what fails.
    """
    attempt, failed = missing.attempt, list[Exception]()
    evidence = ProgramFacts(program, summary, report.message, call, report.device)
    summary = attempt("the roles", summary, with_roles, evidence)
    found = attempt("the findings", (), find_findings, evidence, failed)
    for error in failed:
        missing.say("the findings", error)
    return dataclasses.replace(
        report,
        summary=summary,
        rollup=attempt("the roll-up", {}, rollup, summary),
        findings=found,
    )
