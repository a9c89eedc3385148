"""`hbmwatch peak`: the memory peak of one module of a profile."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from hbmwatch._cli.command import DONE, Command, CommandError, add_json_option, add_peak_options
from hbmwatch._cli.console import print_json, progress
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logdir", metavar="LOGDIR", help="a log folder, a run folder or an .xplane.pb file"
    )
    parser.add_argument("--html", metavar="FILE", help="also write an HTML report")
    add_peak_options(parser)
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    with progress("reading the profile"):
        report = _report(options)
    if options.html is not None:
        with progress("writing the HTML report"):
            _save_html(report, options.html)
    if options.json:
        print_json(report.to_dict())
    else:
        print(report.text(top=options.top))
    return DONE


def _report(options: argparse.Namespace) -> OomReport:
    """The report on a program that need not have failed: its message is empty."""
    from hbmwatch._explain.breakdown import breakdown
    from hbmwatch._explain.conclude import add_findings
    from hbmwatch._explain.problems import Problems
    from hbmwatch._profiles.load import load_program
    from hbmwatch._xla.peak import caveats

    loaded = load_program(options.logdir, module=options.module, memory_space=options.memory_space)
    chosen = f"The largest of {len(loaded.modules)} modules; --module shows another one."
    is_log_folder = (Path(options.logdir) / "plugins" / "profile").is_dir()
    summary = loaded.summary
    report = OomReport(
        OomMessage(""),
        summary,
        notes=(chosen,) if options.module is None and len(loaded.modules) > 1 else (),
        logdir=options.logdir if is_log_folder else None,
    )
    problems = Problems(caveats(summary))
    if options.memory_space == "hbm":
        source = (loaded.program, summary, report.message)
        sizes = problems.try_or_default("breakdown", {}, breakdown, *source)
        report = dataclasses.replace(report, breakdown=sizes)
        report = add_findings(report, summary, loaded.program, None, problems)
    return dataclasses.replace(report, missing=tuple(problems))


def _save_html(report: OomReport, file: str) -> None:
    try:
        report.save_html(file)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error


COMMAND = Command(
    name="peak",
    purpose="show the memory peak of one module of an XProf profile",
    examples=(
        "hbmwatch peak /tmp/xprof",
        "hbmwatch peak /tmp/xprof --module jit_step --html peak.html",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
