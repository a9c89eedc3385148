"""The HLO modules in a file; if it has none, a sentence that says what the file is."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from hbmwatch._profiles import usage
from hbmwatch._profiles.files import read_file
from hbmwatch._profiles.listing import Listing
from hbmwatch._profiles.pprof import described_profile
from hbmwatch._profiles.store import Location
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.protos import HloProto, parse
from hbmwatch._xla.xspace import Contents, read_contents

_HLO_PROTO = (".hlo.pb", ".hlo_proto.pb")
# As XLA names the modules that it dumps: module_0004.jit_step.cpu_after_optimizations.hlo.pb.
_DUMPED = re.compile(r"module_(\d{1,18})\.(.{1,500})\.[^.]*\.hlo\.pb")
# The keys of XProf's PreprocessResult; those with the value 0 are not written.
_MEMORY_VIEWER = {
    "maxHeap",
    "maxHeapBySize",
    "peakHeapMib",
    "heapSizes",
    "totalBufferAllocationMib",
}
_GZIP = b"\x1f\x8b"
_LONGEST_PPROF = 2**28
_TEXT_BEGINNING = 4096  # a proto's first control character follows a name, such as of a module


class MemoryViewerData(ProfileError):
    """The file has XProf's result and no module.

    Attributes:
        result: A PreprocessResult, as JSON has it.
    """

    result: Mapping[str, Any]


def contents_of(path: Location) -> Contents:
    """The modules in a file, and the devices that it is of.

    Args:
        path: An .xplane.pb file, or an .hlo.pb file of XLA's dump.

    Raises:
        MemoryViewerData: It is the JSON of XProf's Memory Viewer.
        ProfileError: It is damaged, or something else; the text says what.
    """
    data = read_file(path)
    name = path.name
    if name.endswith(_HLO_PROTO):
        return Contents({_module_name(path, data): data})
    if name.endswith(usage.PROTO):
        raise usage.of_proto(path, data)
    for is_kind, describe in _OTHER_KINDS:
        if is_kind(data):
            raise describe(path, data)
    error = None
    try:
        contents = read_contents(data, str(path))
    except ProfileError as failed:
        contents, error = Contents({}), failed
    if not contents.modules and _is_hlo_proto(data):
        return Contents({_module_name(path, data): data})
    listing = None if contents.modules else _memory_profile(path, data)
    if listing is not None:
        raise listing
    if error is not None:
        raise error
    return contents


def _module_name(path: Location, data: bytes) -> str:
    """The name of a dumped module as a profile has it, "jit_step(4)"."""
    dumped = _DUMPED.search(path.name)
    if dumped:
        return f"{dumped[2]}({int(dumped[1])})"
    module = parse(HloProto, data, str(path)).hlo_module
    return f"{module.name or path.name}({module.id % 2**64})"


def _is_hlo_proto(data: bytes) -> bool:
    """Whether the bytes are a module; a profile has a number where a module has its name."""
    try:
        proto = parse(HloProto, data, "")
    except ProfileError:
        return False
    return proto.HasField("hlo_module") and bool(proto.hlo_module.name)


def _of_gzip(path: Location, data: bytes) -> ProfileError:
    """A device memory profile, or something else that is compressed."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, _LONGEST_PPROF)
    except zlib.error as error:
        return ProfileError(f"{path} is compressed and cannot be read: {error}", str(path))
    if not unpacker.eof and not unpacker.unconsumed_tail:
        return ProfileError(f"{path} is compressed, and its end is missing", str(path))
    listing = _memory_profile(path, content)
    return listing or ProfileError(f"{path} is compressed: decompress it first", str(path))


def _memory_profile(path: Location, data: bytes) -> Listing | None:
    """What a device memory profile holds; None if the bytes are something else."""
    found = described_profile(data)
    if found is None:
        return None
    sentence, rows = found
    text = (
        f"{path} is a device memory profile, as jax.profiler.save_device_memory_profile writes it: "
        f"{sentence} when it was taken. It holds no program and no shapes, so it has no peak; "
        "pprof shows the stacks"
    )
    return Listing.of(text, str(path), rows)


def _of_json(path: Location, data: bytes) -> ProfileError:
    """XProf's result, or another JSON."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return ProfileError(f"{path} is text, not a profile", str(path))
    if isinstance(values, dict) and values.keys() & _MEMORY_VIEWER:
        found = MemoryViewerData(f"{path} is the JSON of XProf's Memory Viewer", str(path))
        found.result = values
        return found
    if isinstance(values, dict) and "schema" in values:
        text = f"{path} is a stored report: `hbmwatch explain` shows it"
        return ProfileError(text, str(path))
    return ProfileError(f"{path} is JSON, but not of XProf's Memory Viewer", str(path))


def _of_text(path: Location, data: bytes) -> ProfileError:
    return ProfileError(
        f"{path} is text, not a profile: `hbmwatch explain` reads logs, and `hbmwatch peak` reads "
        ".xplane.pb and .hlo.pb files",
        str(path),
    )


def is_text(data: bytes) -> bool:
    """Whether the bytes are text: a proto has control characters that no text has.

    Both may begin with a newline, which is the tag of a proto's first field.
    """
    start = data[:_TEXT_BEGINNING]
    return bool(start) and not any(byte < 9 or 13 < byte < 27 for byte in start)


_OTHER_KINDS: tuple[
    tuple[Callable[[bytes], bool], Callable[[Location, bytes], ProfileError]], ...
] = (
    (lambda data: data.startswith(_GZIP), _of_gzip),
    (lambda data: data[:1] in (b"{", b"["), _of_json),
    (usage.is_report, usage.of_text),
    (is_text, _of_text),
)
