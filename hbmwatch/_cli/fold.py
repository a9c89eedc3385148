"""`hbmwatch fold`: the reports of many processes of a job as one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hbmwatch._cli.command import DONE, NOTHING_FOUND, Command, add_json_option
from hbmwatch._cli.console import look_of, print_json, print_on_stderr, write_text
from hbmwatch._cli.rank_logs import read_logs
from hbmwatch._cli.stored import readable
from hbmwatch._report.report import OomReport

if TYPE_CHECKING:
    from hbmwatch._profiles.store import Location

_NAMED = 4  # sources in a sentence


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a log folder, a folder of log folders or a report.json, also as an address such as "
        "gs://bucket/xprof; or the log of a process",
    )
    add_json_option(parser)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page")


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._profiles.store import opened
    from hbmwatch._profiles.stored import read_report
    from hbmwatch._report.fold_text import folded_text
    from hbmwatch._report.folded import fold_reports

    reports: list[OomReport] = []
    logs: list[str] = []
    for source in options.sources:
        with opened(source) as path:
            if path.is_dir():
                reports += _of_folder(path)
            elif path.suffix == ".json":
                reports.append(read_report(path))
            else:
                logs.append(source)
    of_logs = read_logs(logs)
    reports += of_logs.not_among(reports)
    if not reports and not of_logs.consequences:
        where = ", ".join(options.sources[:_NAMED])
        more = f" and {len(options.sources) - _NAMED} more" if options.sources[_NAMED:] else ""
        print_on_stderr(f"no report and no out-of-memory error found in {where}{more}")
        return NOTHING_FOUND
    folded = fold_reports(reports, of_logs.consequences, of_logs.others)
    if options.html:
        write_text(options.html, folded.to_html())
    if options.json:
        print_json(folded.to_dict())
    else:
        print(folded_text(folded, look_of(options)))
    return DONE


def _of_folder(folder: Location) -> list[OomReport]:
    """The reports of a log folder; else those of the log folders in it, one for each process."""
    from hbmwatch._profiles.files import entries
    from hbmwatch._profiles.stored import run_folders

    if reports := [report for _, report in readable(run_folders(folder))]:
        return reports
    inner = sorted(entry.name for entry in entries(folder) if entry.is_dir())
    runs = [run for name in inner for run in run_folders(folder / name)]
    return [report for _, report in readable(runs)]


COMMAND = Command(
    name="fold",
    purpose="combine the reports of many processes of a job into one",
    examples=(
        "hbmwatch fold /mnt/xprof",
        "hbmwatch fold gs://bucket/xprof",
        "hbmwatch fold rank*.log --html job.html",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
