"""`hbmwatch explain`: the out-of-memory errors in logs, and what they mean."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    CommandError,
    add_json_option,
)
from hbmwatch._cli.console import look_of, print_on_stderr, progress
from hbmwatch._cli.logs import open_log
from hbmwatch._messages.job_log import LogEnd
from hbmwatch._messages.notes import message_notes
from hbmwatch._messages.own_reports import has_report
from hbmwatch._messages.possible import possible_oom
from hbmwatch._messages.stream import find_in_log
from hbmwatch._records.addresses import remote_address
from hbmwatch._records.look import Look
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.text import listed, plural
from hbmwatch._report.report import OomReport
from hbmwatch._report.text import report_text

# A stored report is JSON of at most this many bytes; what is longer is read as a log.
_LONGEST_REPORT = 1 << 28
_BEGINNING = 1 << 12
# How many lines of a file, and how many files, the place of an error names.
_LINES, _FILES = 5, 4

# A command is on a line of its own, so that it can be copied.
_START = (
    "next: to see which buffers filled the memory, put @watch_hbm on the step, or start the job "
    "with\n  hbmwatch run SCRIPT"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A report on an error of a log, with the line where it begins; None in a stored report."""

    report: OomReport
    file: str
    line: int | None


@dataclass(slots=True)
class _Places:
    """Where equal errors were found: the first lines of each file, and how many there are.

    `reported` is the first place where a report of hbmwatch is.
    """

    report: OomReport
    lines: dict[str, list[int | None]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reported: _Found | None = None

    def add(self, found: _Found) -> None:
        """Add a place."""
        lines = self.lines.setdefault(found.file, [])
        self.counts[found.file] = self.counts.get(found.file, 0) + 1
        if len(lines) < _LINES:
            lines.append(found.line)
        is_stored = found.line is None
        if self.reported is None and (is_stored or has_report(found.report.message.text)):
            self.reported = found

    def sentence(self) -> str:
        """Where the errors are: "Found 2 times: train.log, lines 7 and 9"."""
        count = sum(self.counts.values())
        places = [self._place(file) for file in itertools.islice(self.lines, _FILES)]
        more = len(self.lines) - len(places)
        found = "; ".join([*places, *([f"and {plural(more, 'more file')}"] if more else [])])
        return f"Found {f'{count} times: ' if count > 1 else 'in '}{found}."

    def _place(self, file: str) -> str:
        numbers = [str(line) for line in self.lines[file] if line is not None]
        name = _shown(file)
        more = self.counts[file] - len(self.lines[file])
        if not numbers:
            return name
        if more:
            numbers.append(f"{more} more")
        return f"{name}, line{'s' if numbers[1:] else ''} {listed(numbers)}"


def _shown(file: str) -> str:
    """A file as sentences name it."""
    return "the input" if file == "-" else file


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a log, also compressed by gzip, bzip2, xz or zstd, or a stored report "
        "(default: '-', stdin)",
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    files = options.files or ["-"]
    unreadable: list[CommandError] = []
    ends: dict[str, LogEnd] = {}
    profiles: list[str] = []
    found = itertools.chain.from_iterable(_find(file, unreadable, ends, profiles) for file in files)
    if options.json:
        count = _print_json(found)
    else:
        with progress("reading the log"):
            groups = _distinct(found)
        count = len(groups)
        look = look_of(options)
        texts = [*(_text(group, look) for group in groups), _next(groups)]
        print("\n\n".join(filter(None, texts)), end="\n" if groups else "")
    for error in unreadable[:-1]:
        print_on_stderr(str(error))
    if unreadable:
        raise unreadable[-1]
    if not count and ends and not options.json:
        print_on_stderr(_nothing_in(ends))
    for sentence in profiles:
        print_on_stderr(sentence)
    for note in dict.fromkeys(possible_oom(end.text()) for end in ends.values()):
        if note:
            print_on_stderr(note)
    lost = {file: says for file, end in ends.items() if (says := end.lost_peer()) is not None}
    if lost:
        print_on_stderr(_lost_peers(lost))
    return DONE if count else NOTHING_FOUND


def _nothing_in(ends: Mapping[str, LogEnd]) -> str:
    """That logs have no error, and how much was read."""
    lines = sum(end.line_count for end in ends.values())
    files = _shown(next(iter(ends))) if len(ends) == 1 else f"{len(ends)} files"
    return f"no device out-of-memory error in {lines:,} line{'s' * (lines != 1)} of {files}"


def _lost_peers(lost: Mapping[str, str]) -> str:
    """Where the cause is likely, if the logs say that a process lost another one."""
    file, says = next(iter(lost.items()))
    name = _shown(file)
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return (
        f"{name}{more}: this process lost another process ({says}); look for the cause in its log"
    )


def _find(
    file: str, unreadable: list[CommandError], ends: dict[str, LogEnd], profiles: list[str]
) -> Iterator[_Found]:
    """The errors of a log, or the reports that a file stores; else keep the end of the log.

    What a file is that is a profile instead is added to `profiles`, and it has no end.
    """
    end = LogEnd()
    count, first = 0, b""
    try:
        with open_log(file) as blocks:
            first = next(blocks, b"")
            if not first:
                raise CommandError(f"{_shown(file)} is empty")
            if first.lstrip()[:1] in (b"{", b"[") and b'"schema"' in first[:_BEGINNING]:
                content = _whole(first, blocks)
                if (reports := _stored_reports(content)) is not None:
                    yield from (_Found(report, file, None) for report in reports)
                    return
                first = content
            passed = end.passed(itertools.chain((first,), blocks))
            for count, (line, message) in enumerate(find_in_log(passed), start=1):  # noqa: B007
                yield _Found(OomReport(message, notes=message_notes(message)), file, line)
    except CommandError as error:
        unreadable.append(error)
    if not count:
        of_profile = _profile(file, first)
        profiles += of_profile
        if not of_profile:
            ends[file] = end


def _profile(file: str, first: bytes) -> list[str]:
    """What a file is that is a profile and no log; nothing for any other.

    Args:
        file: The file.
        first: Its beginning, decompressed.
    """
    from hbmwatch._profiles.kinds import contents_of, is_text
    from hbmwatch._profiles.listing import Listing

    if file == "-" or remote_address(file) is not None:
        return []
    # All protos begin with the tag of their first field; a log with backspaces is not loaded whole.
    if not first or first[0] > 31 or is_text(first):
        return []
    try:
        modules = contents_of(Path(file)).modules
    except Listing as listing:
        return [str(listing)]
    except ProfileError:
        return []
    return [f"{file} is a profile: `hbmwatch peak` reads it"] if modules else []


def _whole(first: bytes, blocks: Iterator[bytes]) -> bytes:
    """All blocks as one, as far as a stored report may be long."""
    content = bytearray(first)
    for block in blocks:
        content += block
        if len(content) > _LONGEST_REPORT:
            break
    return bytes(content)


def _stored_reports(content: bytes) -> list[OomReport] | None:
    """The reports that OomReport.to_dict() or `explain --json` wrote; None if these are none."""
    try:
        values = json.loads(content)
        return [
            OomReport.from_dict(value)
            for value in (values if isinstance(values, list) else [values])
        ]
    except (ValueError, RecursionError):  # a log may begin like JSON
        return None


def _print_json(found: Iterable[_Found]) -> int:
    """Print a list of reports, each with its file and line, as they are found; their number."""
    count = 0
    for count, error in enumerate(found, start=1):
        values = {**error.report.to_dict(), "file": error.file, "line": error.line}
        print("[" if count == 1 else ",")
        print(textwrap.indent(json.dumps(values, indent=2), "  "), end="")
    print("\n]" if count else "[]")
    return count


def _distinct(found: Iterable[_Found]) -> list[_Places]:
    """One for equal errors, as every host of a job logs them."""
    groups: dict[OomReport, _Places] = {}
    for error in found:
        message = dataclasses.replace(error.report.message, text="")
        key = dataclasses.replace(error.report, message=message)
        groups.setdefault(key, _Places(error.report)).add(error)
    return list(groups.values())


def _next(groups: Sequence[_Places]) -> str:
    """What to do after reading the errors of logs; "" after those that stored reports have."""
    reported = next((group.reported for group in groups if group.reported is not None), None)
    if reported is not None:
        if reported.line is None:
            return ""
        place = f"{_shown(reported.file)}:{reported.line}"
        return f"next: read the report of hbmwatch, at the error in\n  {place}"
    return _START if groups else ""


def _text(places: _Places, look: Look) -> str:
    """The report, with a note on where the errors are."""
    notes = (places.sentence(), *places.report.notes)
    return report_text(dataclasses.replace(places.report, notes=notes), look=look)


COMMAND = Command(
    name="explain",
    purpose="explain the out-of-memory errors in logs",
    examples=(
        "hbmwatch explain train.log",
        "hbmwatch explain host*.log.gz",
        "kubectl logs trainer-0 | hbmwatch explain",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
