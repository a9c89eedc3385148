"""`hbmwatch explain`: the out-of-memory errors in a log, and what they mean."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from hbmwatch._cli.command import DONE, NOTHING_FOUND, Command, add_json_option
from hbmwatch._cli.console import print_json, print_on_stderr, read_text
from hbmwatch._messages.notes import message_notes
from hbmwatch._messages.parse import parse_ooms
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="a log file (default: '-', stdin)"
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    messages = parse_ooms(read_text(options.file))
    if options.json:
        print_json([_report(message).to_dict() for message in messages])
    elif messages:
        print("\n\n".join(map(str, _distinct_reports(messages))))
    else:
        print_on_stderr("no device out-of-memory error found in the input")
    return DONE if messages else NOTHING_FOUND


def _report(message: OomMessage, *more_notes: str) -> OomReport:
    return OomReport(message, notes=(*message_notes(message), *more_notes))


def _distinct_reports(messages: Sequence[OomMessage]) -> list[OomReport]:
    """One report for equal messages, as every host of a job logs them, with their number."""
    groups: dict[OomMessage, list[OomMessage]] = {}
    for message in messages:
        groups.setdefault(dataclasses.replace(message, text=""), []).append(message)
    return [
        _report(equal[0], *([f"Appears {len(equal)} times in this log."] if equal[1:] else []))
        for equal in groups.values()
    ]


COMMAND = Command(
    name="explain",
    purpose="explain the out-of-memory errors in a log",
    examples=("hbmwatch explain train.log", "kubectl logs trainer-0 | hbmwatch explain"),
    add_arguments=_add_arguments,
    run=_run,
)
