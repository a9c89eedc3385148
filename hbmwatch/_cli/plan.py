"""`hbmwatch plan`: changes with which a step fits a device."""

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
    from hbmwatch._preflight.plans import Plan
    from hbmwatch._preflight.verdicts import Fit


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    steps.add_step_options(parser)
    steps.add_size_option(parser)
    steps.add_limit_options(parser)
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=60,
        metavar="S",
        help="stop the search after this many seconds (default: 60)",
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="MODULE:STEP",
        help="a variant of the step to try as well; can be repeated",
    )
    parser.add_argument(
        "--other-values",
        action="store_true",
        help="also accept a change that alters the computed values, such as bfloat16, as the best",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write a page with the memory before and after"
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    targets = steps.targets(options)
    if len(targets) > 1:
        raise CommandError("plan takes one target: run it once for each device")
    from hbmwatch._preflight.plan import plan

    step, args = steps.step_and_arguments(options)
    variants = {name.partition(":")[2]: steps.load(name) for name in options.variant}
    with steps.user_code(options.step):
        found = plan(
            step,
            *args,
            on=targets[0],
            seconds=options.seconds,
            variants=variants,
            keep_values=not options.other_values,
            limit_bytes=options.limit,
            timeout_s=options.timeout,
            memory_fraction=options.memory_fraction,
            on_try=_show_try,
        )
    if options.html is not None:
        _save(found, options.html)
    if options.json:
        print_json(found.to_dict())
    else:
        print_wrapped(found, options)
    return DONE if found.before.fits or found.best is not None else NOTHING_FOUND


def _show_try(what: str, fit: Fit) -> None:
    """One line for each try, on a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"hbmwatch: {what}: {fit}", file=sys.stderr, flush=True)


def _save(found: Plan, file: str) -> None:
    try:
        found.save_html(file)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error


COMMAND = Command(
    name="plan",
    purpose="find a change that makes a step fit a device",
    examples=(
        "hbmwatch plan pkg.model:step --args pkg.model:args_of --size 16 --on v5e",
        "hbmwatch plan pkg.model:step --args pkg.model:ARGS --on h100 --html plan.html",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
