"""Profiles: reads the HLO modules of an XSpace, and writes an XSpace of HLO modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.allocators import device_limits
from hbmwatch._xla.protos import XPlane, XSpace, message_class, parse
from hbmwatch._xla.stats import stat_names, text_of


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
        modules: The HLO modules, as "jit_step(12)" -> serialized HloProto, in the file's order. Of
            two different modules with one name (a GPU's and the CPU's, in two planes) the second is
            "jit_step(12) #2".
        device_types: The kinds of the devices that were profiled: a TPU as XProf names it ("TPU v6
            Lite"), a GPU by its vendor ("AMD GPU").
        device_limits: The bytes that their allocators may use, as far as allocations were profiled.
    """

    modules: dict[str, bytes]
    device_types: frozenset[str] = frozenset()
    device_limits: frozenset[int] = frozenset()


def read_modules(xspace: bytes, what: str = "the profile") -> dict[str, bytes]:
    """The HLO modules of a profile, as `read_contents` finds them, which reads more."""
    return _modules(_planes(xspace, what))


def read_contents(xspace: bytes, what: str = "the profile") -> Contents:
    """What a profile holds; its HloProtos are not parsed.

    Args:
        xspace: A serialized XSpace: the content of an .xplane.pb file.
        what: What the bytes are, for errors ("h.xplane.pb").

    Raises:
        ProfileError: The bytes are empty, or not an XSpace.
    """
    planes = _planes(xspace, what)
    limits = (device_limits(plane) for plane in planes if plane.name == "/host:CPU")
    types = frozenset(filter(None, map(_device_type, planes)))
    return Contents(_modules(planes), types, frozenset[int]().union(*limits))


def _planes(xspace: bytes, what: str) -> Sequence[XPlane]:
    """The planes of a profile.

    Raises:
        ProfileError: The bytes are empty, or not an XSpace.
    """
    if not xspace:
        raise ProfileError(f"{what} is empty (0 bytes)")
    planes = parse(XSpace, xspace, what).planes
    if not planes:
        raise ProfileError(f"{what} is damaged: it holds no planes ({len(xspace)} bytes)")
    return planes


def _modules(planes: Iterable[XPlane]) -> dict[str, bytes]:
    """The HLO modules that the planes hold."""
    found = (plane for plane in planes if plane.name == "/host:metadata")
    return label_modules(module for plane in found for module in _plane_modules(plane))


def _device_type(plane: XPlane) -> str:
    """The kind of the device that a plane is of; "" for a host, and where the plane has none."""
    if not plane.name.startswith("/device:"):
        return ""
    names = stat_names(plane)
    texts = {names.get(stat.metadata_id): text_of(stat, names) for stat in plane.stats}
    if "device_vendor" in texts:
        return f"{texts['device_vendor']} GPU".strip()
    return texts.get("device_type_string", "")


def label_modules(modules: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Modules by name; different modules with one name get " #2", " #3", ..."""
    labeled: dict[str, bytes] = {}
    different: dict[str, set[bytes]] = {}
    for name, proto in modules:
        known = different.setdefault(name, set())
        if proto not in known:
            known.add(proto)
            labeled[name if len(known) == 1 else f"{name} #{len(known)}"] = proto
    return labeled


def _plane_modules(plane: XPlane) -> Iterable[tuple[str, bytes]]:
    """The modules of one metadata plane, as (name, serialized HloProto)."""
    hlo_protos = {entry.key for entry in plane.stat_metadata if entry.value.name == "Hlo Proto"}
    for entry in plane.event_metadata:
        for stat in entry.value.stats:
            if stat.metadata_id in hlo_protos and stat.bytes_value:
                yield entry.value.name, stat.bytes_value


def pack_modules(modules: Sequence[tuple[str, int, bytes]], hostname: str) -> bytes:
    """A profile that holds these modules and nothing else; XProf's Memory Viewer can read it.

    Args:
        modules: The HLO modules, each as (the name without its id, as in "jit_step"; the number in
            the profile's "jit_step(12)"; the serialized HloProto).
        hostname: The host that compiled them.
    """
    events = [
        {
            "id": key,
            "name": f"{name}({program_id % 2**64})",
            "stats": [
                {"metadata_id": 1, "bytes_value": hlo_proto},
                {"metadata_id": 2, "int64_value": _signed(program_id)},
            ],
        }
        for key, (name, program_id, hlo_proto) in enumerate(modules, start=1)
    ]
    names = {1: "Hlo Proto", 2: "program_id"}
    plane = {
        "name": "/host:metadata",
        "event_metadata": [{"key": event["id"], "value": event} for event in events],
        "stat_metadata": [{"key": k, "value": {"id": k, "name": v}} for k, v in names.items()],
    }
    space = message_class(XSpace)(planes=[plane], hostnames=[hostname])
    serialized: bytes = space.SerializeToString()
    return serialized


def _signed(number: int) -> int:
    """An unsigned 64-bit number as the int64 with the same bits."""
    return (number + 2**63) % 2**64 - 2**63
