"""Where profiles are: the runs of a log folder, and the hosts of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from hbmwatch._profiles.files import entries, files_with, listing_problem
from hbmwatch._profiles.store import Location, RemotePath
from hbmwatch._records.profile_error import ProfileError

_XPLANE, _HLO_PROTO = ".xplane.pb", (".hlo.pb", ".hlo_proto.pb")
# How far a folder is searched for runs: a path such as /usr/lib would take seconds.
_MOST_LEVELS, _MOST_ENTRIES = 6, 20_000
_ENTRIES_PER_REQUEST = 100  # what a request to a remote store counts for
_MOST_LOOKS = 20  # runs of a remote store in which a profile is looked for
# As JAX and TensorFlow name a run; any other name is somebody's own.
_DATED = re.compile(r"\d{4}_\d\d_\d\d")
_LISTED = 5


class Place(NamedTuple):
    """The files of one run.

    Attributes:
        files: The files to read, by name: one for each host, or for each module of a dump.
        run: The run's name, with the folders between the log folder and the run's own; "" for a
            file, for the folder of a run, and for a dump.
        other_runs: The other runs of the log folder, the newest first.
    """

    files: tuple[Location, ...]
    run: str = ""
    other_runs: tuple[str, ...] = ()


def find_place(path: Location, run: str | None = None) -> Place:
    """The files of a run.

    Args:
        path: A log folder, the folder of a run, a folder that XLA dumped modules into, or a file.
        run: The name of the run; None for the newest one by name.

    Raises:
        ProfileError: There is none.
    """
    if not _is_folder(path):
        return Place((path,))
    if here := files_with(path, _XPLANE):
        return Place(tuple(here))
    folders, is_complete = _profile_folders(path)
    if runs := {_label(path, each): each for each in _runs(folders)}:
        return _chosen_run(runs, run, path)
    if dumped := _dumped_modules(path):
        return Place(tuple(dumped))
    if problem := _unlisted(path, folders):
        raise ProfileError(problem, str(path))
    first = "" if is_complete else f" among the first {_MOST_ENTRIES} files and folders"
    raise ProfileError(
        f"there is no profile in {path}{first}: expected plugins/profile/RUN/HOST{_XPLANE}, at "
        f"most {_MOST_LEVELS} folders deep{_other_dump(path)}",
        str(path),
    )


def _is_folder(path: Location) -> bool:
    """Whether it is a folder, and no file.

    Raises:
        ProfileError: It is neither, or a folder on the way to it cannot be searched.
    """
    try:
        if path.is_dir():
            return True
        if path.exists():
            return False
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", str(path)) from error
    raise ProfileError(f"there is no profile at {path}: no such file or folder", str(path))


def choose_hosts(place: Place, host: str | None, path: Location) -> tuple[Location, ...]:
    """The files of one host, or of all hosts.

    Raises:
        ProfileError: The run has no such host.
    """
    found = tuple(file for file in place.files if host in (None, host_of(file)))
    if found:
        return found
    known = listed([host_of(file) for file in place.files])
    raise ProfileError(
        f"the profile at {path} has no host {host!r}: choose one of {known}", str(path)
    )


def host_of(file: Location) -> str:
    """The host that wrote a profile, from the name of its file."""
    return file.name.removesuffix(_XPLANE)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a sentence, at most so many of them."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _chosen_run(runs: dict[str, Location], wanted: str | None, path: Location) -> Place:
    """The run of a name, or the newest one by name: files may have been copied since."""
    newest = sorted(runs, key=_age, reverse=True)
    chosen = [run for run in newest if wanted in (None, run, run.rpartition("/")[2])]
    if not chosen or (len(chosen) > 1 and wanted is not None):
        problem = "several runs" if chosen else "no run"
        choices = listed(chosen or newest)
        raise ProfileError(
            f"the folder {path} has {problem} {wanted!r}: choose one of {choices}", str(path)
        )
    for name in chosen[:_MOST_LOOKS]:
        if files := _profiles_of(runs[name]):
            return Place(tuple(files), name, tuple(run for run in newest if run != name))
    looked = ", ".join(str(runs[name]) for name in chosen[:_LISTED])
    raise ProfileError(f"there is no profile in {looked}", str(path))


def _age(run: str) -> tuple[bool, str, str]:
    """The order of runs, the oldest first; those that are not named by their time come before."""
    name = run.rpartition("/")[2]
    return _DATED.match(name) is not None, name, run


def _label(path: Location, run: Location) -> str:
    """A run's name below a log folder: "2026_03_01_10_00_00", or "eval/2026_03_01_10_00_00"."""
    between = _below(path, run).parts
    return "/".join((*between[:-3], between[-1]))


def _below(path: Location, run: Location) -> PurePath:
    """The path of a run below a log folder."""
    if isinstance(run, RemotePath):
        return PurePath(run.address.removeprefix(f"{path}/"))
    return run.relative_to(str(path))


def _runs(folders: Sequence[Location]) -> list[Location]:
    """The runs in these folders that have profiles; of a remote store, all runs."""
    found = [
        folder / entry.name for folder in folders for entry in entries(folder) if entry.is_dir()
    ]
    return [run for run in found if isinstance(run, RemotePath) or _profiles_of(run)]


def _profiles_of(run: Location) -> list[Location]:
    """The profiles of a run; a link may point nowhere."""
    found = files_with(run, _XPLANE)
    return [file for file in found if isinstance(file, RemotePath) or file.exists()]


def _profile_folders(path: Location) -> tuple[list[Location], bool]:
    """The folders plugins/profile of a folder, and whether all of it was searched for them.

    Folders of fewer levels are searched first; in a remote store only as far as one is found.
    """
    count = 0
    found: list[Location] = []
    level = [path]
    is_remote = isinstance(path, RemotePath)
    for _ in range(_MOST_LEVELS + 1):
        below: list[Location] = []
        for folder in level:
            count += _ENTRIES_PER_REQUEST if is_remote else 0
            for entry in entries(folder):
                count += 1
                if count > _MOST_ENTRIES:
                    return found, False
                if entry.is_dir(follow_symlinks=False):
                    below.append(folder / entry.name)
                if entry.name == "plugins" and (folder / "plugins" / "profile").is_dir():
                    found.append(folder / "plugins" / "profile")
        level = [] if is_remote and found else below
    return found, not level


def _dumped_modules(path: Location) -> list[Location]:
    """The modules that XLA dumped into a folder: compiled ones, if there are any."""
    dumped = [file for suffix in _HLO_PROTO for file in files_with(path, suffix)]
    compiled = [file for file in dumped if "after_optimizations" in file.name]
    return compiled or [file for file in dumped if "before_optimizations" not in file.name]


def _other_dump(path: Location) -> str:
    """What a dump of XLA is that has no compiled program, as the end of a sentence."""
    if files_with(path, "after_optimizations.txt"):
        return "; it is a dump of XLA in text: add --xla_dump_hlo_as_proto to XLA_FLAGS"
    if any(files_with(path, f"before_optimizations{suffix}") for suffix in _HLO_PROTO):
        return "; it is a dump of XLA of programs that were not compiled to the end"
    return ""


def _unlisted(path: Location, folders: Sequence[Location]) -> str | None:
    """That a folder cannot be read in which profiles may be; None if all can."""
    runs = (folder / e.name for folder in folders for e in entries(folder) if e.is_dir())
    for folder in (path, *folders, *runs):
        if problem := listing_problem(folder):
            return f"cannot read {folder}: {problem}"
    return None
