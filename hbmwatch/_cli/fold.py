"""`hbmwatch fold`: the reports of many processes of a job as one."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from hbmwatch._cli.command import DONE, NOTHING_FOUND, Command, add_json_option
from hbmwatch._cli.console import print_json, print_on_stderr, read_text, write_text
from hbmwatch._cli.stored import readable
from hbmwatch._messages.parse import parse_ooms
from hbmwatch._messages.peer_loss import lost_peer
from hbmwatch._records.folded import Consequence
from hbmwatch._records.process import Process
from hbmwatch._report.report import OomReport

_RANK = re.compile(r"(?:rank|proc|process|worker|task|host|pod|p)[-_.]?(\d+)", re.IGNORECASE)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a log folder, a folder of log folders, a report.json, or the log of a process",
    )
    add_json_option(parser)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page")


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._profiles.stored import read_report
    from hbmwatch._report.folded import fold_reports

    reports: list[OomReport] = []
    consequences: list[Consequence] = []
    names = Counter(Path(source).name for source in options.sources)
    for number, source in enumerate(options.sources):
        path = Path(source)
        if path.is_dir():
            reports += _of_folder(path)
        elif path.suffix == ".json":
            reports.append(read_report(path))
        else:
            name = path.name if names[path.name] == 1 else source
            of_log = _of_log(source, name, number)
            reports += of_log[0]
            consequences += of_log[1]
    if not reports and not consequences:
        print_on_stderr("no report and no out-of-memory error found")
        return NOTHING_FOUND
    folded = fold_reports(reports, consequences)
    if options.html:
        write_text(options.html, folded.to_html())
    if options.json:
        print_json(folded.to_dict())
    else:
        print(folded)
    return DONE


def _of_folder(folder: Path) -> list[OomReport]:
    """The reports of a log folder; else those of the log folders in it, one for each process."""
    from hbmwatch._profiles.stored import run_folders

    runs = run_folders(folder)
    if not runs:
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
        runs = [run for path in inner for run in run_folders(path)]
    return [report for _, report in readable(runs)]


def _of_log(file: str, name: str, number: int) -> tuple[list[OomReport], list[Consequence]]:
    """The last OOM in a process's log, as a report; else what it says of a lost process."""
    text = read_text(file)
    if messages := parse_ooms(text):
        index = _RANK.search(Path(file).stem)
        process = Process(index=int(index[1]) if index else number, host=name)
        return [OomReport(messages[-1], process_index=process.index, process=process)], []
    lost = lost_peer(text)
    return [], [Consequence(name, lost)] if lost else []


COMMAND = Command(
    name="fold",
    purpose="combine the reports of many processes of a job into one",
    examples=("hbmwatch fold /mnt/xprof", "hbmwatch fold rank*.log --html job.html"),
    add_arguments=_add_arguments,
    run=_run,
)
