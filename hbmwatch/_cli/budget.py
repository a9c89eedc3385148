"""`hbmwatch budget`: compares steps with a stored baseline, for a CI job without a device."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hbmwatch._cli import steps
from hbmwatch._cli.command import (
    DONE,
    NOTHING_FOUND,
    Command,
    CommandError,
    add_json_option,
)
from hbmwatch._cli.console import print_json, print_wrapped, progress

if TYPE_CHECKING:
    from hbmwatch._preflight.assigned import Proof
    from hbmwatch._preflight.budget import Entry


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    steps.add_step_options(parser, optional=True)
    steps.add_size_option(parser)
    parser.add_argument(
        "--baseline",
        required=True,
        metavar="FILE",
        help="the file that stores the steps and their peaks",
    )
    parser.add_argument(
        "--update", action="store_true", help="write the measured peaks into the baseline"
    )
    parser.add_argument(
        "--fail-on-increase",
        metavar="X",
        help="exit with status 1 if a peak grew by more than this, such as 2%% or 64MiB",
    )
    parser.add_argument(
        "--proof",
        choices=("assigned", "compiled"),
        default="assigned",
        help="compile a new step only to the buffer assignment (default), or to the end",
    )
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        help="a folder for verdicts, so that an unchanged step is not compiled again; "
        "'' turns the cache off (default: hbmwatch in the user's cache folder)",
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    targets = steps.targets(options)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from hbmwatch._preflight.budget import (
        Budgeted,
        Tolerance,
        distinct_names,
        load_baseline,
    )

    path = Path(options.baseline)
    try:
        increase = options.fail_on_increase
        tolerance = None if increase is None else Tolerance.read(increase)
    except ValueError as error:
        raise CommandError(f"--fail-on-increase: {error}") from error
    try:
        known = {entry.key: entry for entry in load_baseline(path)}
    except (ValueError, OSError) as error:
        raise CommandError(f"{path}: {error}") from error
    wanted = list(known)
    if options.step:
        wanted = [(options.step, options.args, options.size, on or "") for on in targets]
    if not wanted:
        raise CommandError(f"{path} has no steps: add one with MODULE:STEP and --update")
    names = distinct_names(wanted)
    found = []
    for key in wanted:
        entry = _measured(key, known.get(key), options)
        found.append(Budgeted(names[key], entry.fit, known[key].fit if key in known else None))
        if entry.fit.peak_bytes is not None:  # what was not measured replaces nothing
            known[key] = entry
    if options.update:
        _save(path, list(known.values()))
    if options.json:
        print_json([one.to_dict() for one in found])
    else:
        print_wrapped("\n".join(map(str, found)), options)
    return NOTHING_FOUND if any(one.is_over(tolerance) for one in found) else DONE


def _save(path: Path, entries: list[Entry]) -> None:
    from hbmwatch._preflight.budget import save_baseline

    try:
        save_baseline(path, entries)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def _measured(
    key: tuple[str, str, int | None, str], before: Entry | None, options: argparse.Namespace
) -> Entry:
    """A step, measured now."""
    from hbmwatch._preflight.budget import Entry
    from hbmwatch._preflight.cache import cached_fit, default_folder

    step, args, size, on = key
    proof: Proof = options.proof if before is None else before.proof
    folder = default_folder() if options.cache is None else Path(options.cache or os.devnull)
    activity = f"compiling {step} for {on or 'this device'}"
    with steps.user_code(step), progress(activity):
        fit = cached_fit(
            steps.load(step),
            steps.arguments(args, size),
            {},
            on=on or None,
            folder=None if options.cache == "" else folder,
            proof=proof,
            timeout_s=options.timeout,
        )
    return Entry(step, args, size, on, proof, fit)


COMMAND = Command(
    name="budget",
    purpose="compare the peak memory of steps with a stored baseline",
    examples=(
        "hbmwatch budget pkg.model:step --args pkg.model:args_of --size 16 --on v5e \\\n"
        "      --baseline hbm.json --update",
        "hbmwatch budget --baseline hbm.json --fail-on-increase 2%",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
