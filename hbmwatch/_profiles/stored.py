"""Reports in their runs: written next to the profile, and found again."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hbmwatch._profiles.files import read_file
from hbmwatch._profiles.store import TOGETHER, Location, RemotePath, Store
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._report.report import OomReport

REPORT_JSON = "report.json"
# The JSON comes last: where it is, the others are too.
_WRITERS: dict[str, Callable[[OomReport], str]] = {
    "report.txt": lambda report: f"{report}\n",
    "report.html": lambda report: report.to_html(),
    REPORT_JSON: lambda report: json.dumps(report.to_dict()),
}


def store_report(report: OomReport, run: Path) -> None:
    """Write a report into its run as JSON, text and a page.

    Each file is written under another name and renamed, so that a reader finds it whole or not.

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


def copy_run(report: OomReport, logdir: str) -> OomReport:
    """Copy the run of a report into a remote log folder.

    Args:
        report: A report that is stored in its run, on this host.
        logdir: The address of the log folder.

    Returns:
        The report as it is in the run, with the addresses of the run and of the log folder.

    Raises:
        ProfileError: It cannot be copied, or not within the time limit.
        OSError: The temporary folder cannot be written.
    """
    local = Path(report.run or "")
    run = f"{logdir}/plugins/profile/{local.name}"
    kept = None if report.logdir is None else logdir
    copied = dataclasses.replace(report, run=run, logdir=kept, local_run=str(local))
    with tempfile.TemporaryDirectory(prefix="hbmwatch-copy-") as folder, Store() as store:
        store_report(copied, Path(folder))
        files = [*local.glob("*.xplane.pb"), *(Path(folder, name) for name in _WRITERS)]
        store.write({f"{run}/{file.name}": file for file in files})
    return copied


def run_folders(logdir: Location) -> list[Location]:
    """The runs of a log folder that have a report, the newest name first; or the run itself.

    In a remote store, where each look costs a request, all runs of the log folder.

    Raises:
        ProfileError: The folder cannot be read.
    """
    if isinstance(logdir, RemotePath):
        return _remote_runs(logdir)
    try:
        return _local_runs(logdir)
    except OSError as error:
        raise ProfileError(f"cannot read {logdir}: {error.strerror}", str(logdir)) from error


def _local_runs(logdir: Path) -> list[Location]:
    """The runs of a log folder, the newest name first; or the run itself."""
    if (logdir / REPORT_JSON).is_file():
        return [logdir]
    profiles = logdir / "plugins" / "profile"
    folder = profiles if profiles.is_dir() else logdir
    names = _newest_first(os.listdir(folder))
    return [folder / name for name in names if (folder / name / REPORT_JSON).is_file()]


def _remote_runs(logdir: RemotePath) -> list[Location]:
    """The runs of a remote log folder, the newest name first; or the run itself."""
    found = logdir.entries()
    if not found:
        problem = f"cannot read {logdir}: no such folder, or it is empty"
        raise ProfileError(problem, str(logdir))
    names = {entry.name for entry in found}
    if REPORT_JSON in names:
        return [logdir]
    folder = logdir / "plugins" / "profile" if "plugins" in names else logdir
    folders = [entry.name for entry in folder.entries() if entry.is_folder]
    return [folder / name for name in _newest_first(folders)]


def _newest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=_by_numbers, reverse=True)


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """A key with which the run 9 of a second comes before the run 11."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split("_")]


def read_report(file: Location) -> OomReport:
    """A report that was written as JSON.

    Raises:
        ProfileError: There is none, or the file is damaged.
    """
    return _parsed(read_file(file), file)


def read_reports(
    runs: Sequence[Location], most: int = TOGETHER
) -> Iterator[tuple[Location, OomReport | ProfileError]]:
    """Each run with its report, or why it cannot be read.

    The reports are without buffers and heap trace, which are most of a report's size. Of a remote
    store, runs without a report are left out.

    Args:
        runs: As run_folders returns them, all of this host or all of one store.
        most: How many the caller will take at most; from a store not more are read at once.
    """
    files = [run / REPORT_JSON for run in runs]
    for run, file, content in zip(runs, files, _contents(files, most), strict=True):
        if not isinstance(content, ProfileError):
            try:
                yield run, _parsed(content, file, brief=True)
            except ProfileError as error:
                yield run, error
        elif isinstance(run, Path) or not isinstance(content.__cause__, FileNotFoundError):
            yield run, content


def _contents(files: Sequence[Location], most: int) -> Iterator[bytes | ProfileError]:
    """The content of each file, or why it cannot be read; those of a store are read together."""
    if files and isinstance(files[0], RemotePath):
        yield from files[0].store.read([str(file) for file in files], min(most, TOGETHER))
        return
    for file in files:
        try:
            yield read_file(file)
        except ProfileError as error:
            yield error


def _parsed(content: bytes, file: Location, brief: bool = False) -> OomReport:
    """The report in a file's content, or without its buffers and heap trace."""
    try:
        values: Any = json.loads(content)
        if brief and isinstance(values, dict) and isinstance(values.get("summary"), dict):
            values["summary"] |= {"ops": [], "heap_bytes": []}
        return OomReport.from_dict(values)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{file} is not a saved hbmwatch report: {error}", str(file)) from error
