"""What follows from a program and its peak: roles, roll-up, findings, each had if it can be."""

from __future__ import annotations

import dataclasses

from hbmwatch import _findings, _rollup
from hbmwatch._call import CallInfo
from hbmwatch._evidence import Evidence
from hbmwatch._hlo import Program
from hbmwatch._missing import Missing
from hbmwatch._records import OomReport, PeakSummary


def concluded(
    report: OomReport,
    summary: PeakSummary,
    program: Program,
    call: CallInfo | None,
    missing: Missing,
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
    evidence = Evidence(program, summary, report.message, call, report.device)
    summary = attempt("the roles", summary, _rollup.with_roles, evidence)
    found = attempt("the findings", (), _findings.find, evidence, failed)
    for error in failed:
        missing.say("the findings", error)
    return dataclasses.replace(
        report,
        summary=summary,
        rollup=attempt("the roll-up", {}, _rollup.rollup, summary),
        findings=found,
    )
