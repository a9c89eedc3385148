"""Reports in their runs: written beside the profile, and found again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._report.report import OomReport

REPORT_JSON = "report.json"
_WRITERS: dict[str, Callable[[OomReport], str]] = {
    REPORT_JSON: lambda report: json.dumps(report.to_dict()),
    "report.txt": lambda report: f"{report}\n",
    "report.html": lambda report: report.to_html(),
}


def store_report(report: OomReport, run: Path) -> None:
    """Write a report into its run as JSON, text and a page.

    Each file is written beside its place and renamed, so that a reader finds it whole or not.

    Raises:
        OSError: A file cannot be written.
    """
    for name, render in _WRITERS.items():
        partial = run / f".{name}.partial"
        try:
            partial.write_text(render(report), encoding="utf-8")
            partial.replace(run / name)
        finally:
            partial.unlink(missing_ok=True)


def run_folders(logdir: Path) -> list[Path]:
    """The runs of a log folder that have a report, the newest name first; or the run itself.

    Raises:
        ProfileError: The folder cannot be read.
    """
    if (logdir / REPORT_JSON).is_file():
        return [logdir]
    profiles = logdir / "plugins" / "profile"
    try:
        names = os.listdir(profiles if profiles.is_dir() else logdir)
    except OSError as error:
        raise ProfileError(f"cannot read {logdir}: {error.strerror}", str(logdir)) from error
    folder = profiles if profiles.is_dir() else logdir
    names.sort(key=_by_numbers, reverse=True)
    return [folder / name for name in names if (folder / name / REPORT_JSON).is_file()]


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """A key with which the run 9 of a second comes before the run 11."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split("_")]


def read_report(file: Path, brief: bool = False) -> OomReport:
    """A report that was written as JSON.

    Args:
        file: The file.
        brief: Without the buffers and the heap trace, which are most of a report's size.

    Raises:
        ProfileError: There is none, or the file is damaged.
    """
    try:
        values: Any = json.loads(file.read_bytes())
        if brief and isinstance(values, dict) and isinstance(values.get("summary"), dict):
            values["summary"] |= {"ops": [], "heap_bytes": []}
        return OomReport.from_dict(values)
    except OSError as error:
        raise ProfileError(f"cannot read {file}: {error.strerror}", str(file)) from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{file} holds no report: {error}", str(file)) from error
