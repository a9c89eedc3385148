"""Reads a memory peak from a profile: which run, which module, which reader."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from hbmwatch._profiles import xprof
from hbmwatch._profiles.kinds import MemoryViewerData, contents_of
from hbmwatch._profiles.places import Place, choose_hosts, find_place, host_of, listed
from hbmwatch._profiles.store import Location, RemotePath, opened
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.terms import MEMORY_SPACES, MODULE_NAME, memory_color
from hbmwatch._xla.xspace import Contents, label_modules, pack_modules

_READERS = ("hbmwatch", "xprof")
# Another process may delete a run between its listing and its reading.
_ATTEMPTS = 3


def load_peak_summary(
    path: str | os.PathLike[str],
    *,
    module: str | None = None,
    memory_space: str = "hbm",
    run: str | None = None,
    host: str | None = None,
    reader: Literal["hbmwatch", "xprof"] = "hbmwatch",
) -> PeakSummary:
    """The memory peak of one module of an XProf profile; any tool may have written the profile.

    Args:
        path: A folder for `xprof --logdir`, the folder of a run, or an .xplane.pb file; also a
            folder that XLA dumped its modules into (`--xla_dump_to=FOLDER
            --xla_dump_hlo_as_proto`), an .hlo.pb file of it, or the JSON of XProf's Memory Viewer.
            A folder is searched for runs up to 6 levels deep, and up to 20,000 files and folders.
            Or the address of one of these that fsspec opens ("gs://bucket/xprof"); there, the
            search ends after 200 folders.
        module: "jit_step(12)", or "jit_step" if one module has that name. If hosts or devices have
            different modules of one name: "jit_step(12) #1", "jit_step(12) #2". None: the module
            with the largest peak.
        memory_space: "hbm" (the main memory of a GPU and a CPU, too), "vmem", "sflag", "cmem",
            "smem", "host" or "sparsecore"; on a GPU also "collective" or "temp".
        run: The name of a run in the folder; None: the newest one by name.
        host: The name of a host of the run; None: all of them.
        reader: "hbmwatch", or "xprof" to ask XProf itself, in a child process.

    Raises:
        ProfileError: There is no profile, or it is damaged, or it does not have the run, the host,
            the module, or anything in the memory space, or several modules have that name;
            `modules` are the modules that it has.
        ValueError: No such memory space or reader.
    """
    if reader not in _READERS:
        raise ValueError(f"unknown reader {reader!r}: choose one of 'hbmwatch', 'xprof'")
    with opened(path) as location:
        return _load(location, module, memory_space, run, host, reader)[0].summary


class Loaded(NamedTuple):
    """The peak of a module, and where it is from.

    Attributes:
        program: The program; None if the file has only its peak.
        summary: The peak.
        modules: The labels of all modules of the profile.
        place: The run, and the other runs.
        host: The host whose module it is; "" where the file does not say.
        other_hosts: The other hosts of the run.
        unreadable: Why files and modules could not be read, among which the largest may be.
        device_type: The kind of all devices that were profiled ("TPU v6 Lite", "AMD GPU"); "" where
            there is none, or more than one.
        limit_bytes: What the allocator of each of them may use; None if the profile does not say.
    """

    program: Program | None
    summary: PeakSummary
    modules: tuple[str, ...]
    place: Place
    host: str = ""
    other_hosts: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    device_type: str = ""
    limit_bytes: int | None = None


def load_program(
    path: str | os.PathLike[str],
    *,
    module: str | None = None,
    memory_space: str = "hbm",
    run: str | None = None,
    host: str | None = None,
) -> Loaded:
    """The peak that load_peak_summary returns, with its program.

    Args:
        path: As for load_peak_summary, as all arguments.

    Raises:
        ProfileError: As load_peak_summary.
        ValueError: No such memory space.
    """
    with opened(path) as location:
        loaded, module_read = _load(location, module, memory_space, run, host, "hbmwatch")
    if module_read is None:
        return loaded
    return loaded._replace(program=parse_program(module_read.hlo_proto, module_read.label))


def _load(
    folder: Location,
    module: str | None,
    memory_space: str,
    run: str | None,
    host: str | None,
    reader: str,
) -> tuple[Loaded, _Module | None]:
    """The peak without its program, and the module that has it, if the file has modules."""
    memory_color(memory_space)
    profile = _read(folder, run, host, memory_space)
    if isinstance(profile, Loaded):
        return profile, None
    labels = tuple(each.label for each in profile.modules)
    chosen = _choose_modules(profile.modules, module, folder)
    read = _read_peaks if reader == "hbmwatch" else _ask_xprof
    results = list(zip(chosen, read(chosen, memory_space), strict=True))
    peaks = [(each, found) for each, found in results if isinstance(found, PeakSummary)]
    if not peaks:
        raise ProfileError(f"{folder}: {results[0][1]}", str(folder), labels)
    best, summary = max(peaks, key=lambda peak: peak[1].peak_bytes)
    if not summary.peak_bytes and memory_space != "hbm":
        raise ProfileError(_nothing_there(chosen, memory_space, folder), str(folder), labels)
    hosts = dict.fromkeys(each.host for each in profile.modules)
    others = tuple(name for name in hosts if name != best.host)
    failed = (str(found) for _, found in results if isinstance(found, ProfileError))
    unreadable = (*profile.unreadable, *failed)
    types, limits = profile.device_types, profile.device_limits
    device_type = next(iter(types)) if len(types) == 1 else ""
    limit = next(iter(limits)) if len(limits) == 1 else None
    found = (summary, labels, profile.place, best.host, others, unreadable, device_type, limit)
    return Loaded(None, *found), best


class _Module(NamedTuple):
    """A module: its label ("jit_step(12) #2"), the serialized HloProto, and the first host."""

    label: str
    hlo_proto: bytes
    host: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The names that choose it: "jit_step(12)", "jit_step(12) #1", "jit_step"."""
        match = MODULE_NAME.fullmatch(self.label)
        if not match:
            return (self.label,) * 3
        copy = match["copy"] or " #1"
        plain = f"{match['module']}({match['id']})"
        return (plain, plain + copy, match["module"])


class _Profile(NamedTuple):
    """The modules of a run, where it is, its devices, and why files of it could not be read."""

    modules: list[_Module]
    place: Place
    device_types: frozenset[str]
    device_limits: frozenset[int]
    unreadable: tuple[str, ...]


# --- which file and which module ------------------------------------------------------------------


def _read(
    path: Location, run: str | None, host: str | None, memory_space: str
) -> _Profile | Loaded:
    """The modules of a run, or the peak where the file has only that."""
    for attempt in range(_ATTEMPTS):
        place = find_place(path, run)
        try:
            return _modules(choose_hosts(place, host, path), path, place)
        except MemoryViewerData as data:
            module = str(data.result.get("moduleName", path.stem))
            summary = xprof.to_summary(data.result, module, memory_space)
            return Loaded(None, summary, (module,), place)
        except ProfileError as error:
            is_gone = isinstance(error.__cause__, FileNotFoundError)
            if not is_gone or not place.run or attempt == _ATTEMPTS - 1:
                raise
            if isinstance(path, RemotePath):
                path.store.forget()
    raise AssertionError("the last attempt returns or raises")


def _modules(files: tuple[Location, ...], path: Location, place: Place) -> _Profile:
    """The modules and devices of the files that can be read, and why others cannot.

    Raises:
        ProfileError: No file has a module.
    """
    named: list[tuple[str, bytes]] = []
    hosts: dict[bytes, str] = {}
    read: list[Contents] = []
    errors: list[ProfileError] = []
    for file in files:
        try:
            read.append(contents_of(file))
        except ProfileError as error:
            errors.append(error)
            continue
        for label, proto in read[-1].modules.items():
            named.append((_Module(label, proto, "").names[0], proto))
            hosts.setdefault(proto, host_of(file) if file.name.endswith(".xplane.pb") else "")
    if not named and errors:
        raise errors[0]
    if not named:
        raise ProfileError(f"the profile at {path} holds no HLO module", str(path))
    labeled = label_modules(named)
    modules = [_Module(label, proto, hosts[proto]) for label, proto in labeled.items()]
    types = frozenset[str]().union(*(each.device_types for each in read))
    limits = frozenset[int]().union(*(each.device_limits for each in read))
    return _Profile(modules, place, types, limits, tuple(map(str, errors)))


def _nothing_there(modules: list[_Module], memory_space: str, path: Location) -> str:
    """That no module has a peak in a memory space, and which memory spaces they use."""
    programs = [parse_program(module.hlo_proto, module.label) for module in modules]
    colors = {a.color for program in programs for a in program.allocations if a.size}
    used = [name for name, color in MEMORY_SPACES.items() if color in colors]
    return f"the profile at {path} has nothing in {memory_space}; its memory spaces: {listed(used)}"


def _choose_modules(modules: list[_Module], wanted: str | None, path: Location) -> list[_Module]:
    """All modules, or the one of a name."""
    same = [module for module in modules if wanted is None or wanted in module.names]
    if len(same) == 1 or (same and wanted is None):
        return same
    problem = "holds several modules" if same else "holds no module"
    raise ProfileError(
        f"the profile at {path} {problem} {wanted!r}: choose one of {_choices(same or modules)}",
        str(path),
        tuple(module.label for module in modules),
    )


def _choices(modules: list[_Module]) -> str:
    """The names to choose from."""
    copies = Counter(module.names[0] for module in modules)
    return listed([m.names[1] if copies[m.names[0]] > 1 else m.names[0] for m in modules])


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
