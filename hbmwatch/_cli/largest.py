"""`hbmwatch largest`: the largest size with which a step fits a device."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hbmwatch._cli import steps
from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    CommandError,
    add_json_option,
    positive_number,
)
from hbmwatch._cli.console import print_json, print_wrapped

if TYPE_CHECKING:
    from hbmwatch._preflight.verdicts import Fit, Largest


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    steps.add_step_options(parser)
    for name, text in (
        ("--multiple-of", "try only multiples of this (default: 1)"),
        ("--start", "the first size to try (default: the smallest)"),
        ("--at-most", "the largest size to try (default: no limit)"),
    ):
        parser.add_argument(name, type=positive_number, metavar="N", help=text)
    steps.add_verdict_options(parser)
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    targets = steps.targets(options)
    from hbmwatch._preflight.largest import largest

    if not options.args:
        raise CommandError("largest needs --args: a function that takes the size")
    step, args_of = steps.load(options.step), steps.load(options.args)
    found: list[Largest] = []
    for on in targets:
        with steps.user_code(options.step):
            found.append(
                largest(
                    step,
                    args_of,
                    on=on,
                    multiple_of=options.multiple_of or 1,
                    start=options.start,
                    at_most=options.at_most,
                    proof=options.proof,
                    limit_bytes=options.limit,
                    timeout_s=options.timeout,
                    memory_fraction=options.memory_fraction,
                    on_try=_show_try,
                )
            )
    if options.json:
        print_json([result.to_dict() for result in found])
    else:
        print_wrapped("\n".join(map(str, found)), options)
    is_known = all(result.size is not None and not result.error for result in found)
    return DONE if is_known else NOTHING_FOUND


def _show_try(size: int, fit: Fit) -> None:
    """One line for each try, on a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"hbmwatch: {size} {fit}", file=sys.stderr, flush=True)


COMMAND = Command(
    name="largest",
    purpose="find the largest size for which a step fits a device",
    examples=(
        "hbmwatch largest pkg.model:step --args pkg.model:args_of --on v5e --multiple-of 8",
        "hbmwatch largest pkg.model:step --args pkg.model:args_of --on v6e,h100 --proof assigned",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
