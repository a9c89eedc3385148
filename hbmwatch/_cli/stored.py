"""The reports of a log folder that can be read, as `show` and `fold` take them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hbmwatch._cli.console import print_on_stderr
from hbmwatch._records.profile_error import ProfileError

if TYPE_CHECKING:
    from hbmwatch._profiles.store import Location
    from hbmwatch._report.report import OomReport


def readable(
    runs: Sequence[Location], most: int = sys.maxsize
) -> Iterator[tuple[Location, OomReport]]:
    """The first runs with their reports in brief; stderr names each damaged one, which is left out.

    Args:
        runs: As run_folders returns them.
        most: How many are returned at most.
    """
    from hbmwatch._profiles.stored import read_reports

    found = 0
    for run, report in read_reports(runs, most):
        if isinstance(report, ProfileError):
            print_on_stderr(f"left out: {report}")
            continue
        yield run, report
        found += 1
        if found == most:
            return
