"""The parts of a pprof profile that we read; its texts are numbers of a table.

Source: profile.proto of github.com/google/pprof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from hbmwatch._xla.protos import Ints, Message


class PprofValueType(Message):
    type: Annotated[int, 1]
    unit: Annotated[int, 2]


class PprofLabel(Message):
    key: Annotated[int, 1]
    str: Annotated[int, 2]


class PprofSample(Message):
    location_id: Annotated[Ints, 1]
    value: Annotated[Ints, 2]
    label: Annotated[Sequence[PprofLabel], 3]


class PprofLine(Message):
    function_id: Annotated[int, 1]
    line: Annotated[int, 2]


class PprofLocation(Message):
    id: Annotated[int, 1]
    line: Annotated[Sequence[PprofLine], 4]


class PprofFunction(Message):
    id: Annotated[int, 1]
    name: Annotated[int, 2]
    filename: Annotated[int, 4]


class PprofProfile(Message):
    sample_type: Annotated[Sequence[PprofValueType], 1]
    sample: Annotated[Sequence[PprofSample], 2]
    location: Annotated[Sequence[PprofLocation], 4]
    function: Annotated[Sequence[PprofFunction], 5]
    string_table: Annotated[Sequence[str], 6]
