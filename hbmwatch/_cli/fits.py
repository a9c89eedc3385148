"""`hbmwatch fits`: whether a step fits a device, without the device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hbmwatch._cli import steps
from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    add_json_option,
)
from hbmwatch._cli.console import look_of, print_json, print_wrapped, progress, write_text
from hbmwatch._report.text import report_text

if TYPE_CHECKING:
    from hbmwatch._preflight.verdicts import Fit


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    steps.add_step_options(parser)
    steps.add_size_option(parser)
    steps.add_verdict_options(parser)
    parser.add_argument(
        "--html", metavar="FILE", help="also write an HTML report, one for each target"
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    targets = steps.targets(options)
    from hbmwatch._preflight.fits import fits

    step, args = steps.step_and_arguments(options)
    found = []
    for on in targets:
        activity = f"compiling {options.step} for {on or 'this device'}"
        with steps.user_code(options.step), progress(activity):
            fit = fits(
                step,
                *args,
                on=on,
                proof=options.proof,
                limit_bytes=options.limit,
                timeout_s=options.timeout,
                memory_fraction=options.memory_fraction,
            )
        found.append(fit)
        if options.html is not None:
            _save(fit, options.html, len(targets) > 1)
    _show(found, options)
    return DONE if all(fit.fits for fit in found) else NOTHING_FOUND


def _show(found: list[Fit], options: argparse.Namespace) -> None:
    if options.json:
        print_json([fit.to_dict() for fit in found])
        return
    width = max(len(fit.target) for fit in found)
    for fit in found:
        print_wrapped(f"{fit.target:<{width}}  {fit}", options)
    if len(found) == 1:
        print(f"\n{report_text(found[0].report, look=look_of(options))}")


def _save(fit: Fit, file: str, several: bool) -> None:
    """Write the page; with several targets, each file has its target in its name."""
    path = Path(file)
    if several:
        path = path.with_name(f"{path.stem}-{fit.target.replace(':', '-')}{path.suffix}")
    write_text(str(path), fit.report.to_html())


COMMAND = Command(
    name="fits",
    purpose="check whether a step fits a device, without the device",
    examples=(
        "hbmwatch fits pkg.model:step --args pkg.model:args_of --size 16 --on v5e,h100",
        "hbmwatch fits pkg.model:step --args pkg.model:ARGS --on v5e:4x4 --proof assigned",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
