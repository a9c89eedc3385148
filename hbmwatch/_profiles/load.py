"""Reads a memory peak from a profile folder: which run, which module, which reader."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hbmwatch._profiles import xprof
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.terms import MODULE_NAME, memory_color
from hbmwatch._xla.xspace import label_modules, pack_modules, read_modules

_READERS = ("hbmwatch", "xprof")
_SUFFIX = ".xplane.pb"
# How far a folder is searched for runs: a path such as /usr/lib would take seconds.
_MOST_LEVELS, _MOST_ENTRIES = 6, 20_000


def load_peak_summary(
    path: str | os.PathLike[str],
    *,
    module: str | None = None,
    memory_space: str = "hbm",
    reader: Literal["hbmwatch", "xprof"] = "hbmwatch",
) -> PeakSummary:
    """The memory peak of one module of an XProf profile; any tool may have written the profile.

    Args:
        path: A folder for `xprof --logdir` (its newest run is read), the folder of a run (all its
            hosts are read), or an .xplane.pb file. A folder is searched for runs up to 6 levels
            deep, and up to 20,000 files and folders.
        module: "jit_step(12)", or "jit_step" if one module has that name. If hosts or devices have
            different modules of one name: "jit_step(12) #1", "jit_step(12) #2". None: the module
            with the largest peak.
        memory_space: "hbm" (the main memory of a GPU and a CPU, too), "vmem", "sflag", "cmem",
            "smem", "host" or "sparsecore"; on a GPU also "collective" or "temp".
        reader: "hbmwatch", or "xprof" to ask XProf itself, in a child process.

    Raises:
        ProfileError: There is no profile, or it is damaged, or it does not have the module, or
            several modules have that name; `modules` are the modules that it has.
        ValueError: No such memory space or reader.
    """
    memory_color(memory_space)
    if reader not in _READERS:
        raise ValueError(f"unknown reader {reader!r}: choose one of 'hbmwatch', 'xprof'")
    folder = Path(path)
    modules = _modules(_xplanes(folder), folder)
    chosen = _choose_modules(modules, module, folder)
    read = _read_peaks if reader == "hbmwatch" else _ask_xprof
    results = list(read(chosen, memory_space))
    summaries = [result for result in results if isinstance(result, PeakSummary)]
    if not summaries:
        labels = tuple(module.label for module in modules)
        raise ProfileError(f"{folder}: {results[0]}", str(folder), labels)
    return max(summaries, key=lambda summary: summary.peak_bytes)


class Loaded(NamedTuple):
    """A program of a profile, its peak, and the labels of all modules of the profile."""

    program: Program
    summary: PeakSummary
    modules: tuple[str, ...]


def load_program(
    path: str | os.PathLike[str], *, module: str | None = None, memory_space: str = "hbm"
) -> Loaded:
    """The peak that load_peak_summary reads, with its program.

    Args:
        path: As for load_peak_summary.
        module: As for load_peak_summary.
        memory_space: As for load_peak_summary.

    Raises:
        ProfileError: As load_peak_summary.
        ValueError: No such memory space.
    """
    memory_color(memory_space)
    folder = Path(path)
    modules = _modules(_xplanes(folder), folder)
    labels = tuple(module.label for module in modules)
    best: Loaded | None = None
    errors: list[ProfileError] = []
    for chosen in _choose_modules(modules, module, folder):
        try:
            program = parse_program(chosen.hlo_proto, chosen.label)
            loaded = Loaded(program, peak_summary(program, memory_space), labels)
        except ProfileError as error:
            errors.append(error)
            continue
        if best is None or loaded.summary.peak_bytes > best.summary.peak_bytes:
            best = loaded
    if best is None:
        raise ProfileError(f"{folder}: {errors[0]}", str(folder), labels)
    return best


class _Module(NamedTuple):
    """A module of a profile: its label ("jit_step(12) #2"), and the serialized HloProto."""

    label: str
    hlo_proto: bytes

    @property
    def names(self) -> tuple[str, str, str]:
        """The names that choose it: "jit_step(12)", "jit_step(12) #1", "jit_step"."""
        match = MODULE_NAME.fullmatch(self.label)
        if not match:
            return (self.label,) * 3
        copy = match["copy"] or " #1"
        plain = f"{match['module']}({match['id']})"
        return (plain, plain + copy, match["module"])


# --- which file and which module ------------------------------------------------------------------


def _xplanes(path: Path) -> list[Path]:
    """The .xplane.pb files of the newest run, by name."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise ProfileError(f"there is no profile at {path}: no such file or folder", str(path))
    in_this_folder = sorted(path.glob(f"*{_SUFFIX}"))
    if in_this_folder:
        return in_this_folder
    runs: dict[Path, float] = {}
    folders, is_complete = _profile_folders(path)
    for profiles in folders:
        for xplane in profiles.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # a broken link does not hide other runs
                runs[xplane.parent] = max(runs.get(xplane.parent, 0.0), xplane.stat().st_mtime)
    if not runs:
        first = "" if is_complete else f" among the first {_MOST_ENTRIES} files and folders"
        raise ProfileError(
            f"there is no profile in {path}{first}: expected plugins/profile/RUN/HOST{_SUFFIX}, at "
            f"most {_MOST_LEVELS} folders deep",
            str(path),
        )
    newest = max(runs, key=lambda run: (runs[run], run.name))
    return sorted(newest.glob(f"*{_SUFFIX}"))


def _profile_folders(path: Path) -> tuple[list[Path], bool]:
    """The folders plugins/profile of a folder, and whether all of it was searched for them.

    Folders of fewer levels are searched first.
    """
    entries = 0
    found: list[Path] = []
    level = [path]
    for _ in range(_MOST_LEVELS + 1):
        below: list[Path] = []
        for folder in level:
            if (profiles := folder / "plugins" / "profile").is_dir():
                found.append(profiles)
            with contextlib.suppress(OSError), os.scandir(folder) as scan:
                for entry in scan:
                    entries += 1
                    if entries > _MOST_ENTRIES:
                        return found, False
                    if entry.is_dir(follow_symlinks=False):
                        below.append(folder / entry.name)
        level = below
    return found, not level


def _modules(xplanes: Sequence[Path], path: Path) -> list[_Module]:
    """The modules of all hosts; hosts whose file is damaged are left out if another can be read."""
    modules: list[_Module] = []
    errors: list[ProfileError] = []
    for xplane in xplanes:
        try:
            modules += (_Module(*entry) for entry in _read(xplane).items())
        except ProfileError as error:
            errors.append(error)
    if not modules:
        raise ProfileError(
            str(errors[0]) if errors else f"the profile at {path} holds no HLO module", str(path)
        )
    labeled = label_modules((module.names[0], module.hlo_proto) for module in modules)
    return [_Module(label, proto) for label, proto in labeled.items()]


def _read(xplane: Path) -> dict[str, bytes]:
    """The modules of one file."""
    try:
        data = xplane.read_bytes()
    except OSError as error:
        raise ProfileError(f"cannot read {xplane}: {error.strerror}", str(xplane)) from error
    return read_modules(data, str(xplane))


def _choose_modules(modules: list[_Module], wanted: str | None, path: Path) -> list[_Module]:
    """All modules, or the one of a name."""
    same = [module for module in modules if wanted is None or wanted in module.names]
    if len(same) == 1 or (same and wanted is None):
        return same
    problem = "holds several modules" if same else "holds no module"
    raise ProfileError(
        f"the profile at {path} {problem} {wanted!r}: choose one of {_listed(same or modules)}",
        str(path),
        tuple(module.label for module in modules),
    )


def _listed(modules: list[_Module]) -> str:
    """The names to choose from, at most twenty of them."""
    plain = [module.names[0] for module in modules]
    names = [m.names[1] if plain.count(m.names[0]) > 1 else m.names[0] for m in modules]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# --- the readers ----------------------------------------------------------------------------------


def _read_peaks(modules: list[_Module], memory_space: str) -> Iterator[PeakSummary | ProfileError]:
    """The peak of each module, or why it cannot be read."""
    for module in modules:
        try:
            program = parse_program(module.hlo_proto, module.label)
            yield peak_summary(program, memory_space)
        except ProfileError as error:
            yield error


def _ask_xprof(modules: list[_Module], memory_space: str) -> Iterator[PeakSummary | ProfileError]:
    """XProf's peak of each module, or why it has none; one child process answers for all.

    XProf tells modules apart by their names alone, so each gets its own number.
    """
    packed = [(m.names[2], number, m.hlo_proto) for number, m in enumerate(modules)]
    xspace = pack_modules(packed, "hbmwatch")
    requests = [(f"{name}({number})", memory_space) for name, number, _ in packed]
    for module, result in zip(modules, xprof.preprocess_results(xspace, requests), strict=True):
        try:
            yield xprof.to_summary(result, module.label, memory_space)
        except ProfileError as error:
            yield error
