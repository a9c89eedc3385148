"""Device memory profiles in pprof's format: what is live on the devices."""

from __future__ import annotations

from collections import Counter

from hbmwatch._profiles.listing import Row
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.pprof_protos import PprofProfile, PprofSample
from hbmwatch._xla.protos import parse


def described_profile(data: bytes) -> tuple[str, list[Row]] | None:
    """What a device memory profile holds: bytes by kind in a sentence, and a row for each line.

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
    kinds: Counter[str] = Counter()
    devices: set[str] = set()
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    frames = _frames(profile, strings)
    for sample in profile.sample:
        values = dict(zip(units, sample.value, strict=False))
        labels = {_at(strings, label.key): _at(strings, label.str) for label in sample.label}
        kind = labels.get("kind", "memory")
        size = values.get(("space", "bytes"), 0)
        kinds[kind] += size
        devices |= {labels["device"]} if "device" in labels else set()
        what = f"{kind} of {_place(sample, frames)}"
        sizes[what] += size
        counts[what] += values.get(("allocations", "count"), 0)
    rows = [Row(size, counts[what] or None, what) for what, size in sizes.items() if size]
    return _sentence(kinds, devices), rows


def _at(strings: list[str], index: int) -> str:
    return strings[index] if 0 <= index < len(strings) else ""


def _frames(profile: PprofProfile, strings: list[str]) -> dict[int, tuple[tuple[str, str], ...]]:
    """The frames of each location, the innermost first: "/path/file.py:line" and the function."""
    functions = {
        function.id: (_at(strings, function.filename), _at(strings, function.name))
        for function in profile.function
    }
    unknown = ("", "")
    return {
        location.id: tuple(
            (
                f"{functions.get(line.function_id, unknown)[0]}:{line.line}",
                functions.get(line.function_id, unknown)[1],
            )
            for line in location.line
        )
        for location in profile.location
    }


def _place(sample: PprofSample, frames: dict[int, tuple[tuple[str, str], ...]]) -> str:
    """The user's line that made a buffer, and its function: "train.py:12, in load"."""
    stack = [frame for place in sample.location_id for frame in frames.get(place, ())]
    if not stack:
        return "an unknown line"
    line = user_frame([where for where, _ in stack])
    function = next((name for where, name in stack if where.endswith(line)), "")
    return f"{line}, in {function}" if function else line


def _sentence(kinds: Counter[str], devices: set[str]) -> str:
    sizes = [f"{format_size(size)} of {kind}s" for kind, size in kinds.most_common() if size]
    where = f" on {len(devices)} device{'s' if len(devices) > 1 else ''}" if devices else ""
    return f"{' and '.join(sizes) or '0 B'}{where}"
