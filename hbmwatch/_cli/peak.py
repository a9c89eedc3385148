"""`hbmwatch peak`: the memory peak of one module of a profile."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    print_wrapped,
    progress,
    write_text,
)
from hbmwatch._cli.steps import size
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import DeviceMemory
from hbmwatch._records.sizes import format_size
from hbmwatch._report.report import OomReport
from hbmwatch._report.text import report_text

if TYPE_CHECKING:
    from hbmwatch._profiles.load import Loaded

# What begins a sentence on modules that could not be read, among those that are missing.
OTHER_MODULES = "other modules"
# How many other runs and hosts a note names.
_LISTED = 5


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logdir",
        metavar="PATH",
        help="a log folder, a run folder or an .xplane.pb file; a folder of --xla_dump_to or an "
        ".hlo.pb file; the JSON of XProf's Memory Viewer; also an address, such as gs://bucket/xprof",
    )
    parser.add_argument(
        "--run", dest="run_name", metavar="RUN", help="run to read (default: the newest, by name)"
    )
    parser.add_argument("--host", metavar="HOST", help="host to read (default: all of the run)")
    add_limit_options(parser)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML report")
    add_peak_options(parser)
    add_json_option(parser)


def add_limit_options(parser: argparse.ArgumentParser, what: str = "the module") -> None:
    """Add --limit and --on, with which `checked_limit` knows a limit; `what` has to fit it."""
    parser.add_argument(
        "--limit",
        type=size,
        metavar="SIZE",
        help=f"check that {what} fits a limit, such as 80GiB",
    )
    parser.add_argument(
        "--on", metavar="DEVICE", help=f"check that {what} fits a device, such as v5e or h100"
    )


def _run(options: argparse.Namespace) -> int:
    from hbmwatch._profiles.listing import Listing

    limit, device = checked_limit(options)
    try:
        with progress("reading the profile"):
            report = report_of_profile(
                options.logdir,
                options.module,
                options.memory_space,
                run=options.run_name,
                host=options.host,
                limit_bytes=limit,
                device=device,
            )
    except Listing as listing:
        if options.json or options.html is not None or limit is not None:
            raise
        print_wrapped(listing.text(options.top), options)
        print_on_stderr(str(listing))
        return DONE
    if options.html is not None:
        with progress("writing the HTML report"):
            write_text(options.html, report.to_html())
    if options.json:
        print_json(report.to_dict())
    else:
        print(report_text(report, options.top, look_of(options)))
    summary = report.summary
    fits = limit is None or summary is None or summary.total_allocation_bytes <= limit
    return DONE if fits else NOTHING_FOUND


def checked_limit(options: argparse.Namespace) -> tuple[int | None, str]:
    """The limit to check, and the device that has it."""
    if options.on is None or options.limit is not None:
        return options.limit, ""
    from hbmwatch._preflight.targets import resolve

    try:
        target = resolve(options.on)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error
    if target.limit_bytes is None:
        raise CommandError(f"the memory of {options.on} is unknown: give it with --limit")
    return (
        target.limit_bytes,
        f" ({options.on}{f', {target.limit_note}' if target.limit_note else ''})",
    )


def report_of_profile(
    path: str,
    module: str | None,
    memory_space: str,
    *,
    run: str | None = None,
    host: str | None = None,
    limit_bytes: int | None = None,
    device: str = "",
) -> OomReport:
    """The report on a program that need not have failed: its message is empty.

    Args:
        path: The profile, as the help of `peak` says.
        module: The module to read; None: the one with the highest peak.
        memory_space: The memory space to read.
        run: The run of a log folder; None: the newest.
        host: The host of the run; None: all.
        limit_bytes: The limit to check; None for no check.
        device: What has that limit, in parentheses.
    """
    from hbmwatch._explain.breakdown import breakdown
    from hbmwatch._explain.conclude import add_findings
    from hbmwatch._explain.problems import Problems
    from hbmwatch._profiles.load import load_program
    from hbmwatch._xla.peak import caveats

    loaded = load_program(path, module=module, memory_space=memory_space, run=run, host=host)
    is_log_folder = loaded.place.run and "/" not in loaded.place.run
    summary = loaded.summary
    profiled, note = _device(loaded, limit_bytes is None)
    needed = None if limit_bytes is None else summary.total_allocation_bytes
    report = OomReport(
        OomMessage("", used_bytes=needed, limit_bytes=limit_bytes),
        summary,
        profiled,
        notes=(*note, *_notes(loaded, module, limit_bytes, device)),
        logdir=path if is_log_folder else None,
    )
    problems = Problems(caveats(summary))
    problems += _left_out(loaded.unreadable)
    if loaded.program is None:
        problems.append("findings: the JSON of XProf's Memory Viewer holds no program")
    elif memory_space == "hbm":
        source = (loaded.program, summary, report.message)
        sizes = problems.try_or_default("breakdown", {}, breakdown, *source)
        report = dataclasses.replace(report, breakdown=sizes)
        report = add_findings(report, summary, loaded.program, None, problems)
    return dataclasses.replace(report, missing=tuple(problems))


def _notes(loaded: Loaded, module: str | None, limit: int | None, device: str) -> tuple[str, ...]:
    """The verdict, and which run, host and module this is."""
    notes = [] if limit is None else [_verdict(loaded.summary, limit, device)]
    if loaded.place.run:
        notes.append(_which("run", loaded.place.run, loaded.place.other_runs))
    if loaded.host:
        notes.append(_which("host", loaded.host, loaded.other_hosts))
    if module is None and len(loaded.modules) > 1:
        which = "the modules that could be read" if loaded.unreadable else len(loaded.modules)
        notes.append(f"This module has the highest peak of {which}; --module shows another.")
    return tuple(notes)


def _device(loaded: Loaded, is_limit: bool) -> tuple[DeviceMemory | None, tuple[str, ...]]:
    """The device that was profiled, and a note on its memory; None if not known.

    Args:
        loaded: The module. A profile of a device may also have modules that ran on the CPU.
        is_limit: Whether the memory of that device is the limit, and no other one was given.
    """
    from hbmwatch._preflight.targets import memory_of

    kind, limit, program = loaded.device_type, loaded.limit_bytes, loaded.program
    if not kind or program is None or loaded.summary.memory_space != "hbm":
        return None, ()
    if not (program.is_of_gpu if kind.endswith("GPU") else program.is_tiled):
        return None, ()
    source = "its allocator says so in the profile"
    if known := memory_of(kind):
        kind, of_kind, measured = known
        limit, source = (of_kind, measured) if limit is None else (limit, source)
    if not is_limit or limit is None:
        return DeviceMemory(kind, program.device_count), ()
    note = (
        f"A program can use {format_size(limit)} of the device that was profiled ({kind}; "
        f"{source}); --limit checks another limit."
    )
    return DeviceMemory(kind, program.device_count, limit_bytes=limit), (note,)


def _left_out(unreadable: Sequence[str]) -> list[str]:
    """What of the profile could not be read, where it may hold a higher peak."""
    more = len(unreadable) - _LISTED
    reasons = [*unreadable[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
    return [f"{OTHER_MODULES}: {reason}" for reason in reasons]


def _which(what: str, name: str, others: tuple[str, ...]) -> str:
    """Which run or host this is, and which others there are."""
    if not others:
        return f"{what.capitalize()} {name}."
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    listed = ", ".join(others[:_LISTED]) + more
    return f"{what.capitalize()} {name}. For another one: --{what} {listed}."


def _verdict(summary: PeakSummary, limit: int, device: str) -> str:
    """Whether the program's allocations fit; the peak alone would not count fragmentation."""
    needed = summary.total_allocation_bytes
    if needed <= limit:
        left = format_size(limit - needed)
        return (
            f"The program fits {format_size(limit)}{device}: {left} is left for other arrays and "
            "programs."
        )
    return (
        f"The program does not fit {format_size(limit)}{device}: it needs "
        f"{format_size(needed - limit)} more."
    )


COMMAND = Command(
    name="peak",
    purpose="show the memory peak of one module of an XProf profile",
    examples=(
        "hbmwatch peak /tmp/xprof",
        "hbmwatch peak gs://bucket/xprof --host worker-3",
        "hbmwatch peak /tmp/xprof --module jit_step --html peak.html",
        "hbmwatch peak /tmp/xprof --run 2026_03_01_10_00_00 --on v5e",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
