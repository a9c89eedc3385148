"""The reports of a log folder that can be read, as `show` and `fold` take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hbmwatch._cli.console import print_on_stderr
from hbmwatch._records.profile_error import ProfileError

if TYPE_CHECKING:
    from hbmwatch._report.report import OomReport


def readable(runs: Iterable[Path]) -> Iterator[tuple[Path, OomReport]]:
    """Each run with its report in brief; a damaged report is left out, and stderr says so."""
    from hbmwatch._profiles.stored import REPORT_JSON, read_report

    for run in runs:
        try:
            yield run, read_report(run / REPORT_JSON, brief=True)
        except ProfileError as error:
            print_on_stderr(f"left out: {error}")
