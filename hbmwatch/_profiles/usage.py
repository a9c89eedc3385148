"""XLA's memory usage reports, which have totals and no program: as text and as protos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from hbmwatch._profiles.listing import Listing, Row
from hbmwatch._profiles.store import Location
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import SIZE, format_size, read_size
from hbmwatch._xla.protos import Message, parse

PROTO = "memory-usage-report.pb"  # how the name of a proto ends
_TOTAL = re.compile(
    rb"^(?:Memory Space: (.{1,80}?)(?: \(color=\d+\))?\n)?Total bytes(?: used)?: (\d{1,19})", re.M
)
# Lines of its tables: "32.00MiB( 80%); 8.00MiB; allocation 0: size 8.00MiB, parameter 1:" and
# "8.00MiB( 33%); 8.00MiB; 16777216; 2; 2×f32[2048,1024]".
_ALLOCATION = re.compile(
    rf"^ *{SIZE}\( *\d{{1,3}}%\); *{SIZE}; (allocation \d{{1,9}}): size ({SIZE}), "
    r"([^\n]{1,300})$",
    re.M,
)
_PLACE = re.compile(
    rf"^[ \t]*{SIZE}\( *\d{{1,3}}%\); *({SIZE}); *\d{{1,19}}; *\d{{1,9}}; ([^\n]{{1,500}})$", re.M
)
_SHOWN = 5


class UsedAllocation(Message):
    """An allocation, with the instructions whose results are in it."""

    size_bytes: Annotated[int, 2]
    instructions: Annotated[Sequence[str], 5]


class UsedSpace(Message):
    """A memory space."""

    total_bytes: Annotated[int, 1]
    allocations: Annotated[Sequence[UsedAllocation], 3]


class MemoryUsageReport(Message):
    """The parts of XLA's MemoryUsageReportProto that we read, as jaxlib 0.10.2 dumps it."""

    spaces: Annotated[Sequence[UsedSpace], 1]


def is_report(data: bytes) -> bool:
    """Whether a text is a memory usage report."""
    return _TOTAL.search(data[:4096]) is not None


def of_text(path: Location, data: bytes) -> Listing:
    """What a memory usage report in text says."""
    found = [
        (format_size(int(size)), space.decode(errors="replace"))
        for space, size in _TOTAL.findall(data)
    ]
    totals = [f"{size} in {space}" if space else size for size, space in found]
    how = "--xla_dump_hlo_as_proto in XLA_FLAGS dumps an .hlo.pb file, which has one"
    return _listing(path, totals, how, list(_rows(data.decode(errors="replace"))))


def of_proto(path: Location, data: bytes) -> Listing:
    """What a memory usage report as a proto says.

    Raises:
        ProfileError: It is damaged or empty.
    """
    report = parse(MemoryUsageReport, data, str(path))
    sizes = [space.total_bytes for space in report.spaces]
    sizes += [each.size_bytes for space in report.spaces for each in space.allocations]
    if not sizes or min(sizes) < 0:
        problem = "has a negative size" if sizes else "holds no memory space"
        text = f"{path} is no memory usage report of XLA: it {problem}"
        raise ProfileError(text, str(path))
    totals = [format_size(space.total_bytes) for space in report.spaces]
    rows = [
        Row(each.size_bytes, None, ", ".join(each.instructions[:_SHOWN]) or "an allocation")
        for space in report.spaces
        for each in space.allocations
        if each.size_bytes
    ]
    return _listing(path, totals, "the .hlo.pb file of the same dump has one", rows)


def _listing(path: Location, totals: list[str], how: str, rows: list[Row]) -> Listing:
    text = (
        f"{path} is XLA's memory usage report: {', '.join(totals[:_SHOWN])}. It holds no program, "
        f"so it has no peak; {how}"
    )
    return Listing.of(text, str(path), rows)


def _rows(report: str) -> Iterator[Row]:
    """The allocations of a memory usage report; of a newer one the places in them."""
    allocations = [(size, f"{name}: {what}") for name, size, what in _ALLOCATION.findall(report)]
    for size, what in allocations or _PLACE.findall(report):
        known = read_size(size)
        if known is not None and known.size_bytes:
            yield Row(known.size_bytes, None, what.strip(" :"))
