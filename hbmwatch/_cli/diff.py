"""`hbmwatch diff`: what changed between two memory peaks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hbmwatch._cli.command import DONE, Command, CommandError, add_json_option, add_peak_options
from hbmwatch._cli.console import print_json, progress, read_text
from hbmwatch._records.peak import PeakSummary
from hbmwatch._report.report import OomReport


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a profile, or a report saved as JSON")
    parser.add_argument("b", metavar="B", help="the profile or report to compare with")
    add_peak_options(parser)
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._report.diff import diff_dict, diff_text

    with progress("reading the two peaks"):
        (before, limit), (after, other) = (_peak(path, options) for path in (options.a, options.b))
    if options.json:
        print_json(diff_dict(before, after))
    else:
        print(diff_text(before, after, options.top, limit if limit is not None else other))
    return DONE


def _peak(path: str, options: argparse.Namespace) -> tuple[PeakSummary, int | None]:
    """The peak in a profile, or in a report that was saved as JSON, and the limit in a report."""
    if not _is_saved_report(path):
        from hbmwatch._profiles.load import load_peak_summary

        space = options.memory_space
        return load_peak_summary(path, module=options.module, memory_space=space), None
    try:
        report = OomReport.from_dict(json.loads(read_text(path)))
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        raise CommandError(f"{path} is not a saved hbmwatch report: {error}") from error
    if report.summary is None:
        raise CommandError(f"the report in {path} has no memory peak")
    return report.summary, report.breakdown.get("limit", report.message.limit_bytes)


def _is_saved_report(path: str) -> bool:
    """Whether a path holds text; a profile never starts with a brace."""
    file = Path(path)
    if path == "-" or path.endswith(".json") or file.is_fifo():
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(1) == b"{"
    except OSError:  # a folder, or nothing at all
        return False


COMMAND = Command(
    name="diff",
    purpose="compare two memory peaks",
    examples=(
        "hbmwatch diff /tmp/xprof-batch-8 /tmp/xprof-batch-9",
        "hbmwatch peak --json /tmp/xprof > before.json",
        "hbmwatch diff before.json /tmp/xprof",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
