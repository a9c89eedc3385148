"""Device memory profiles in pprof's format: what is live on the devices."""

from __future__ import annotations

from collections import Counter

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.pprof_protos import PprofProfile, PprofSample
from hbmwatch._xla.protos import parse

_LINES = 3


def described_profile(data: bytes) -> str | None:
    """What a device memory profile holds: bytes by kind, and the lines that made the most.

    Args:
        data: A serialized pprof Profile.

    Returns:
        None if the bytes are none, or a profile of something else than memory.
    """
    try:
        profile = parse(PprofProfile, data, "")
    except ProfileError:
        return None
    strings = list(profile.string_table)
    units = [(_at(strings, kind.type), _at(strings, kind.unit)) for kind in profile.sample_type]
    if ("space", "bytes") not in units:
        return None
    place = units.index(("space", "bytes"))
    kinds: Counter[str] = Counter()
    devices: set[str] = set()
    lines: Counter[str] = Counter()
    frames = _frames(profile, strings)
    for sample in profile.sample:
        size = sample.value[place] if place < len(sample.value) else 0
        labels = {_at(strings, label.key): _at(strings, label.str) for label in sample.label}
        kinds[labels.get("kind", "memory")] += size
        devices |= {labels["device"]} if "device" in labels else set()
        lines[_line(sample, frames)] += size
    return _sentence(kinds, devices, lines)


def _at(strings: list[str], index: int) -> str:
    return strings[index] if 0 <= index < len(strings) else ""


def _frames(profile: PprofProfile, strings: list[str]) -> dict[int, tuple[str, ...]]:
    """The frames of each location, "/path/file.py:line", innermost first."""
    files = {function.id: _at(strings, function.filename) for function in profile.function}
    return {
        location.id: tuple(
            f"{files.get(line.function_id, '')}:{line.line}" for line in location.line
        )
        for location in profile.location
    }


def _line(sample: PprofSample, frames: dict[int, tuple[str, ...]]) -> str:
    """The user's line that made a buffer."""
    return user_frame([frame for place in sample.location_id for frame in frames.get(place, ())])


def _sentence(kinds: Counter[str], devices: set[str], lines: Counter[str]) -> str:
    sizes = [f"{format_size(size)} of {kind}s" for kind, size in kinds.most_common() if size]
    where = f" on {len(devices)} device{'s' if len(devices) > 1 else ''}" if devices else ""
    most = [
        f"{line} ({format_size(size)})" for line, size in lines.most_common(_LINES) if line and size
    ]
    made = f", most of it made at {', '.join(most)}" if most else ""
    return f"{' and '.join(sizes) or '0 B'}{where}{made}"
