"""What the allocators of the devices may use, as their events in a profile tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.protos import XEvent, XLine, XPlane, parse
from hbmwatch._xla.stats import stat_names, text_of

_EVENTS = {"MemoryAllocation", "MemoryDeallocation"}
_PARTS = ("bytes_reserved", "bytes_allocated", "bytes_available")
# A GPU's events name the allocator; others are of the host. A TPU's events name the device.
_OF_DEVICES = re.compile(r"GPU_\d+_bfc")
_MOST_EVENTS = 10_000  # of a plane; the first ones tell


def device_limits(plane: XPlane) -> frozenset[int]:
    """The bytes that the devices' allocators may use; empty if no event tells or one is damaged."""
    kinds = {entry.key for entry in plane.event_metadata if entry.value.name in _EVENTS}
    if not kinds:
        return frozenset()
    names = stat_names(plane)
    try:
        limits = {_limit(event, names) for event in _events(plane, kinds)}
    except ProfileError:
        return frozenset()
    return frozenset(limit for limit in limits if limit is not None)


def _events(plane: XPlane, kinds: Iterable[int]) -> Iterable[XEvent]:
    """The first events of some kinds; no other event is parsed, as there may be millions."""
    beginnings = tuple(b"\x08" + _varint(kind) for kind in kinds)
    left = _MOST_EVENTS
    for line in plane.lines:
        for event in parse(XLine, line, "a line of a profile").events:
            if not event.startswith(beginnings):
                continue
            parsed = parse(XEvent, event, "an event of a profile")
            if parsed.metadata_id not in kinds:
                continue
            yield parsed
            left -= 1
            if not left:
                return


def _limit(event: XEvent, names: Mapping[int, str]) -> int | None:
    """What an allocator has in use, and what it has left; None for an allocator of the host."""
    stats = {names.get(stat.metadata_id): stat for stat in event.stats}
    allocator = stats.get("allocator_name")
    if allocator is not None:
        is_of_device = _OF_DEVICES.fullmatch(text_of(allocator, names)) is not None
    else:
        is_of_device = "index_on_host" in stats
    if not is_of_device or not all(part in stats for part in _PARTS):
        return None
    return sum(stats[part].int64_value for part in _PARTS) or None


def _varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
