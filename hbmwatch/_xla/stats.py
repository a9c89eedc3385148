"""The statistics of a profile, whose names and texts their plane holds once each."""

from __future__ import annotations

from collections.abc import Mapping

from hbmwatch._xla.protos import XPlane, XStat


def stat_names(plane: XPlane) -> dict[int, str]:
    """The names of a plane's statistics, by the ids that the statistics have."""
    return {entry.key: entry.value.name for entry in plane.stat_metadata}


def text_of(stat: XStat, names: Mapping[int, str]) -> str:
    """The text of a statistic, which may be one of the names; "" for a number."""
    return stat.str_value or names.get(stat.ref_value, "")
