"""Profile folders: which file, which module, which reader."""

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


def load_peak_summary(
    path: str | os.PathLike[str],
    *,
    module: str | None = None,
    memory_space: str = "hbm",
    reader: Literal["hbmwatch", "xprof"] = "hbmwatch",
) -> PeakSummary:
    """The memory peak of a module in a profile, whoever made the profile.

    Args:
        path: A folder for `xprof --logdir` (of several runs the newest is read), the folder of a
            run (of several hosts all are read), or an .xplane.pb file.
        module: "jit_step(12)", or "jit_step" where one module has that name. Where hosts or
            devices have different modules of one name: "jit_step(12) #1", "jit_step(12) #2". None:
            the only one, else the one with the largest peak of those that can be read.
        memory_space: "hbm" (the main memory of a GPU and a CPU, too), "vmem", "sflag", "cmem",
            "smem", "host" or "sparsecore"; on a GPU also "collective" or "temp".
        reader: "hbmwatch", or "xprof" to ask XProf itself, in a child process.

    Raises:
        ProfileError: There is no profile, it is damaged, or the module is not in it or not the
            only one of that name; `modules` are those that are there.
        ValueError: No such memory space or reader.
    """
    memory_color(memory_space)
    if reader not in _READERS:
        raise ValueError(f"unknown reader {reader!r}: choose one of 'hbmwatch', 'xprof'")
    place = Path(path)
    modules = _modules(_xplanes(place), place)
    chosen = _matching(modules, module, place)
    results = list((_own if reader == "hbmwatch" else _asked)(chosen, memory_space))
    found = [result for result in results if isinstance(result, PeakSummary)]
    if not found:
        there = tuple(module.label for module in modules)
        raise ProfileError(f"{place}: {results[0]}", str(place), there)
    return max(found, key=lambda summary: summary.peak_bytes)


class Loaded(NamedTuple):
    """A program of a profile, its peak, and all modules that are there."""

    program: Program
    summary: PeakSummary
    modules: tuple[str, ...]


def load_program(
    path: str | os.PathLike[str], *, module: str | None = None, memory_space: str = "hbm"
) -> Loaded:
    """What load_peak_summary reads, with the program that it was read from.

    Raises:
        ProfileError: As load_peak_summary.
        ValueError: No such memory space.
    """
    memory_color(memory_space)
    place = Path(path)
    modules = _modules(_xplanes(place), place)
    there = tuple(module.label for module in modules)
    best: Loaded | None = None
    failed: list[ProfileError] = []
    for chosen in _matching(modules, module, place):
        try:
            program = parse_program(chosen.hlo_proto, chosen.label)
            loaded = Loaded(program, peak_summary(program, memory_space), there)
        except ProfileError as error:
            failed.append(error)
            continue
        if best is None or loaded.summary.peak_bytes > best.summary.peak_bytes:
            best = loaded
    if best is None:
        raise ProfileError(f"{place}: {failed[0]}", str(place), there)
    return best


class _Module(NamedTuple):
    """A module of a profile: its label ("jit_step(12) #2"), the serialized HloProto, the file."""

    label: str
    hlo_proto: bytes
    xplane: Path

    @property
    def names(self) -> tuple[str, str, str]:
        """What it may be asked for by: "jit_step(12)" first, "jit_step(12) #1", "jit_step"."""
        match = MODULE_NAME.fullmatch(self.label)
        if not match:
            return (self.label,) * 3
        copy = match["copy"] or " #1"
        plain = f"{match['module']}({match['id']})"
        return (plain, plain + copy, match["module"])


# --- which file and which module ------------------------------------------------------------------


def _xplanes(place: Path) -> list[Path]:
    """The .xplane.pb files of one run, by name."""
    if place.is_file():
        return [place]
    if not place.exists():
        raise ProfileError(f"there is no profile at {place}: no such file or folder", str(place))
    here = sorted(place.glob(f"*{_SUFFIX}"))
    if here:
        return here
    runs: dict[Path, float] = {}
    for xplane in place.glob(f"**/plugins/profile/*/*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # a link that leads nowhere does not hide other runs
            runs[xplane.parent] = max(runs.get(xplane.parent, 0.0), xplane.stat().st_mtime)
    if not runs:
        expected = f"plugins/profile/RUN/HOST{_SUFFIX}"
        raise ProfileError(f"there is no profile in {place}: expected {expected}", str(place))
    newest = max(runs, key=lambda run: (runs[run], run.name))
    return sorted(newest.glob(f"*{_SUFFIX}"))


def _modules(xplanes: Sequence[Path], place: Path) -> list[_Module]:
    """The modules of all hosts; of several hosts, one whose file is damaged is left out."""
    found: list[_Module] = []
    failed: list[ProfileError] = []
    for xplane in xplanes:
        try:
            found += (_Module(*entry, xplane) for entry in _read(xplane).items())
        except ProfileError as error:
            failed.append(error)
    if not found:
        raise ProfileError(
            str(failed[0]) if failed else f"the profile at {place} holds no HLO module", str(place)
        )
    homes = {id(module.hlo_proto): module.xplane for module in found}
    labelled = label_modules((module.names[0], module.hlo_proto) for module in found)
    return [_Module(label, proto, homes[id(proto)]) for label, proto in labelled.items()]


def _read(xplane: Path) -> dict[str, bytes]:
    """The modules of one file."""
    try:
        data = xplane.read_bytes()
    except OSError as error:
        raise ProfileError(f"cannot read {xplane}: {error.strerror}", str(xplane)) from error
    return read_modules(data, str(xplane))


def _matching(modules: list[_Module], wanted: str | None, place: Path) -> list[_Module]:
    """All modules, or the one that is wanted."""
    same = [module for module in modules if wanted is None or wanted in module.names]
    if len(same) == 1 or (same and wanted is None):
        return same
    problem = "holds several modules" if same else "holds no module"
    raise ProfileError(
        f"the profile at {place} {problem} {wanted!r}: choose one of {_listed(same or modules)}",
        str(place),
        tuple(module.label for module in modules),
    )


def _listed(modules: list[_Module]) -> str:
    """The modules by what to ask for, at most twenty of them."""
    plain = [module.names[0] for module in modules]
    names = [m.names[1] if plain.count(m.names[0]) > 1 else m.names[0] for m in modules]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# --- the readers ----------------------------------------------------------------------------------


def _own(modules: list[_Module], memory_space: str) -> Iterator[PeakSummary | ProfileError]:
    """Our own reading of each module."""
    for module in modules:
        try:
            program = parse_program(module.hlo_proto, module.label)
            yield peak_summary(program, memory_space)
        except ProfileError as error:
            yield error


def _asked(modules: list[_Module], memory_space: str) -> Iterator[PeakSummary | ProfileError]:
    """XProf's reading of each module, by one child.

    XProf tells modules apart by their names alone, so each gets a number of its own.
    """
    packed = [(m.names[2], number, m.hlo_proto) for number, m in enumerate(modules)]
    xspace = pack_modules(packed, "hbmwatch")
    requests = [(f"{name}({number})", memory_space) for name, number, _ in packed]
    for module, result in zip(modules, xprof.preprocess_results(xspace, requests), strict=True):
        try:
            yield xprof.to_summary(result, module.label, memory_space)
        except ProfileError as error:
            yield error
