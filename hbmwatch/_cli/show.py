"""`hbmwatch show`: the runs of a log folder, or the report of one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    CommandError,
    add_json_option,
    positive_number,
)
from hbmwatch._cli.console import look_of, print_json, print_on_stderr, print_wrapped, write_text
from hbmwatch._cli.stored import readable
from hbmwatch._records.text import clean, plural
from hbmwatch._report.report import OomReport
from hbmwatch._report.text import one_line, report_text

if TYPE_CHECKING:
    from hbmwatch._profiles.store import Location


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logdir",
        metavar="PATH",
        help="a log folder, the folder of one run or its report.json; also an address, such as "
        "gs://bucket/xprof",
    )
    parser.add_argument(
        "--run", dest="name", metavar="RUN", help="show this run's report: its name, or 'last'"
    )
    parser.add_argument(
        "--most", type=positive_number, default=20, metavar="N", help="runs to list (default: 20)"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the run's report as a page")
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._profiles.store import opened
    from hbmwatch._profiles.stored import REPORT_JSON, run_folders

    with opened(options.logdir) as logdir:
        if options.name is None and logdir.suffix == ".json" and not logdir.is_dir():
            return _show(logdir, options)
        runs = run_folders(logdir)
        if runs == [logdir] and options.name is None:
            return _show(logdir / REPORT_JSON, options)
        if options.name not in (None, "last"):
            return _show(_named(runs, options.name) / REPORT_JSON, options)
        if options.html and options.name is None and runs:
            raise CommandError("--html writes one report: choose a run with --run")
        # Of a remote store, runs without a report are found only when they are read.
        most = options.most if options.name is None else 1
        listed = list(readable(runs, most))
        if not listed:
            print_on_stderr(f"{options.logdir} has no run with a report")
            return NOTHING_FOUND
        if options.name is not None:
            return _show(listed[0][0] / REPORT_JSON, options)
    _print_list(listed, runs, options)
    return DONE


def _print_list(
    listed: list[tuple[Location, OomReport]], runs: list[Location], options: argparse.Namespace
) -> None:
    """The runs that are listed, and how many are not."""
    if options.json:
        print_json([{"run": str(run), **_row(report)} for run, report in listed])
        return
    for run, report in listed:
        row = _row(report)
        where = f"{row['time']}  process {row['process']} on {row['host']}"
        print_wrapped(f"{where}  {row['headline']}\n  {clean(run.name, 200)}", options)
    if older := len(runs) - 1 - runs.index(listed[-1][0]):
        left_out = f"not listed: {plural(older, 'older run')}"
        print_wrapped(f"{left_out}; --most {len(runs)} lists all", options)


def _named(runs: list[Location], name: str) -> Location:
    """The run with this name."""
    for run in runs:
        if run.name == name:
            return run
    raise CommandError(f"there is no run {clean(name, 200)!r}; `hbmwatch show PATH` lists all runs")


def _show(file: Location, options: argparse.Namespace) -> int:
    """The report in a file."""
    from hbmwatch._profiles.stored import read_report

    report = read_report(file)
    if options.html:
        write_text(options.html, report.to_html())
    if options.json:
        print_json(report.to_dict())
    else:
        print(report_text(report, look=look_of(options)))
    return DONE


def _row(report: OomReport) -> dict[str, object]:
    """What the list says of a run."""
    from hbmwatch._report.folding import process_of

    process = process_of(report)
    return {
        "time": clean(process.time, 40),
        "process": process.index,
        "host": clean(process.host, 60),
        "function": clean(report.function, 60),
        "headline": one_line(report),
    }


COMMAND = Command(
    name="show",
    purpose="list the runs of a log folder, or show the report of one",
    examples=(
        "hbmwatch show /mnt/xprof",
        "hbmwatch show gs://bucket/xprof --run last --html oom.html",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
