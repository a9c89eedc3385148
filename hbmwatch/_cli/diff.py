"""`hbmwatch diff`: what changed between two memory peaks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    CommandError,
    add_json_option,
    add_peak_options,
)
from hbmwatch._cli.console import (
    look_of,
    print_json,
    print_on_stderr,
    progress,
    read_text,
    write_text,
)
from hbmwatch._cli.peak import OTHER_MODULES, add_limit_options, checked_limit, report_of_profile
from hbmwatch._records.addresses import remote_address
from hbmwatch._records.report import limit_of
from hbmwatch._records.text import clean
from hbmwatch._report.diff import GROUPINGS
from hbmwatch._report.report import OomReport


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a profile, or a report saved as JSON")
    parser.add_argument("b", metavar="B", help="the profile or report to compare with")
    add_limit_options(parser, what="the second module")
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page")
    parser.add_argument(
        "--by",
        choices=tuple(GROUPINGS),
        default="origin",
        metavar="GROUP",
        help=f"how to group the changes: {', '.join(GROUPINGS)} (default: origin, the operation "
        "and its line)",
    )
    add_peak_options(parser, rows="changes")
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._report.comparison import Comparison
    from hbmwatch._report.diff_text import diff_text

    limit, note = checked_limit(options)
    with progress("reading the two peaks"):
        before, after = (_report(path, options) for path in (options.a, options.b))
    for path, report in ((options.a, before), (options.b, after)):
        for problem in report.missing:
            if problem.startswith(OTHER_MODULES):
                print_on_stderr(f"{path}: {problem}")
    known = (limit, limit_of(after), limit_of(before))
    comparison = Comparison(before, after, next((n for n in known if n is not None), None), note)
    if options.html is not None:
        from hbmwatch._report.diff_html import diff_page

        first, second = (clean(name, 80) for name in (options.a, options.b))
        write_text(options.html, diff_page(comparison, first, second, options.by))
    if options.json:
        print_json(comparison.to_dict(options.by))
    else:
        print(diff_text(comparison, options.top, look_of(options), options.by))
    fits = limit is None or comparison.total_bytes[1] <= limit
    return DONE if fits else NOTHING_FOUND


def _report(path: str, options: argparse.Namespace) -> OomReport:
    """The report on a profile, or one that was saved as JSON."""
    if not _is_saved_report(path):
        return report_of_profile(path, options.module, options.memory_space)
    try:
        report = OomReport.from_dict(json.loads(read_text(path)))
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        raise CommandError(f"{path} is not a saved hbmwatch report: {error}") from error
    if report.summary is None:
        raise CommandError(f"the report in {path} has no memory peak")
    return report


def _is_saved_report(path: str) -> bool:
    """Whether a path holds text; a profile never starts with a brace."""
    if path == "-" or path.endswith(".json"):
        return True
    if remote_address(path) is not None:
        return False
    file = Path(path)
    try:
        if file.is_fifo():
            return True
        with file.open("rb") as opened:
            return opened.read(1) == b"{"
    except OSError:  # a folder, nothing at all, or what cannot be read
        return False


COMMAND = Command(
    name="diff",
    purpose="compare two memory peaks",
    examples=(
        "hbmwatch diff /tmp/xprof-batch-8 /tmp/xprof-batch-9",
        "hbmwatch peak --json /tmp/xprof > before.json",
        "hbmwatch diff before.json /tmp/xprof --html diff.html",
        "hbmwatch diff before.json /tmp/xprof --by layer",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
