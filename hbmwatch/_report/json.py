"""Reports as JSON-able values and back, and the fingerprint that groups reports."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hbmwatch._records import message as message_records
from hbmwatch._records import peak as peak_records
from hbmwatch._records import peak_op as peak_op_records
from hbmwatch._records import process as process_records
from hbmwatch._records import report as report_records

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage
    from hbmwatch._records.report import ReportData

T = TypeVar("T")
_Read = Callable[[Any, str], Any]

SCHEMA = 1

# Public classes name "hbmwatch" as their module, so annotations are looked up where they are
# written. The one array of a report is read as a list of ints: numpy is slow to load.
_NAMES: dict[str, Any] = {
    **vars(message_records),
    **vars(peak_op_records),
    **vars(peak_records),
    **vars(process_records),
    **vars(report_records),
    "npt": types.SimpleNamespace(NDArray=list),
    "np": types.SimpleNamespace(int64=int),
}
_NONE: Mapping[str, Any] = types.MappingProxyType({})
_KINDS = {int: "an int", str: "a string", list: "a list", tuple: "a list", Mapping: "a mapping"}
# The text of a message may hold numbers of 40 digits and a unit. No size is far beyond that.
_SIZE_LIMIT = 10**64
_JIT_PREFIX = re.compile(r"^(?:jit|pmap|pjit|xmap)_+")
_GENERATED_SUFFIX = re.compile(r"(?:[._]\d+|\(\d+\))+$")
_SEPARATORS = re.compile(r"[\W_]+")


def report_dict(report: ReportData) -> dict[str, Any]:
    """The report as JSON-able values, with a schema version."""
    fields: dict[str, Any] = plain(report)
    return {"schema": SCHEMA, **fields}


def plain(value: Any) -> Any:
    """A record and everything in it as dicts, lists, strings and numbers."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def rebuild_report(record: Callable[..., T], values: Any) -> T:
    """The record that report_dict turned into values.

    Fields that this version does not know are ignored: a schema version may gain fields.

    Args:
        record: The class of the report.
        values: What to_dict() returned, or the same after a round trip through JSON.

    Raises:
        ValueError: Another schema version, or values that are not a report.
    """
    schema = values.get("schema") if isinstance(values, Mapping) else None
    if schema != SCHEMA:
        raise ValueError(
            f'not a report with schema version {SCHEMA} ("schema" is {_short(schema)})'
        )
    rebuilt: T = _reader(record)(values, "report")
    return rebuilt


def rebuild_record(
    record: Callable[..., T],
    values: Any,
    where: str,
    names: Mapping[str, Any],
    readers: Mapping[str, Callable[[Any], Any]],
) -> T:
    """A record that is not part of a report, from a mapping of its fields.

    Args:
        record: The class.
        values: The fields; those that the class does not know are ignored.
        where: What an error calls the record.
        names: The names in the annotations of the class that the records of a report do not use.
        readers: Functions that restore a field, instead of its annotation.

    Raises:
        ValueError: A field is missing or has a value of another type.
    """
    own = {name: lambda value, _, read=read: read(value) for name, read in readers.items()}
    rebuilt: T = _record_reader(record, names, own)(values, where)
    return rebuilt


@functools.cache
def _reader(hint: Any) -> _Read:
    """The function that checks a value against a type hint and restores it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record_reader(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_reader(each) for each in arguments if each is not type(None))
        return lambda value, where: None if value is None else inner(value, where)
    if origin is Literal:
        return functools.partial(_literal, arguments)
    if origin is tuple:
        return functools.partial(_tuple, _reader(arguments[0]))
    if origin is Mapping:
        return functools.partial(_mapping, _reader(arguments[1]))
    if hint in (bool, float):
        return _flag if hint is bool else _number
    return _array if origin is list else functools.partial(_checked, hint)


def _record_reader(
    record: Any, names: Mapping[str, Any] = _NAMES, own: Mapping[str, _Read] = _NONE
) -> _Read:
    """The function that restores a record from a mapping; `own` restores some of its fields."""
    hints = typing.get_type_hints(record, {**_NAMES, **names})
    fields = dataclasses.fields(record)
    readers = {f.name: own[f.name] if f.name in own else _reader(hints[f.name]) for f in fields}
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}

    def read(value: Any, where: str) -> Any:
        given = _checked(Mapping, value, where)
        if absent := needed - given.keys():
            raise ValueError(f"{where} is incomplete: it has no {', '.join(sorted(absent))}")
        known = readers.keys() & given.keys()
        return record(**{name: readers[name](given[name], f"{where}.{name}") for name in known})

    return read


def _literal(known: tuple[str, ...], value: Any, where: str) -> Any:
    if value not in known:
        raise ValueError(f"{where} is {_short(value)}, not one of {', '.join(map(repr, known))}")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {_short(value)}, not true or false")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} is {_short(value)}, not a number")
    return float(value)


def _tuple(read: _Read, value: Any, where: str) -> tuple[Any, ...]:
    items = enumerate(_checked(list, value, where))
    return tuple(read(item, f"{where}[{n}]") for n, item in items)


def _mapping(read: _Read, value: Any, where: str) -> dict[str, Any]:
    items = _checked(Mapping, value, where).items()
    return {
        _checked(str, key, f"a key of {where}"): read(item, f"{where}[{key!r}]")
        for key, item in items
    }


def _array(value: Any, where: str) -> Any:
    import numpy as np  # slow to load, and not needed for a report without a memory peak

    if not all(type(item) is int for item in _checked(list, value, where)):
        raise ValueError(f"{where} has an item that is not an int")
    try:
        array = np.asarray(value, dtype=np.int64)
    except OverflowError as error:
        raise ValueError(f"{where} has an int of more than 64 bits") from error
    if (array < 0).any():
        raise ValueError(f"{where} has an item below 0")
    array.flags.writeable = False
    return array


def _checked(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where} is {_short(value)}, not {_KINDS[kind]}")
    if kind is int and not 0 <= value < _SIZE_LIMIT:
        problem = "is below 0" if value < 0 else "has more than 64 digits"
        raise ValueError(f"{where} {problem}")
    return value


def _short(value: Any) -> str:
    return repr(value)[:80]


def fingerprint(report: ReportData) -> str:
    """16 hex digits that are equal for failures of one function in one memory.

    Sizes, shapes, source lines, versions and the numbers that a compiler appends to names do not
    count: two failures that differ only in batch size have the same fingerprint. Nor does a program
    count that is a guess.
    """
    message, summary = report.message, report.summary
    module, transfer = message.module, report.transfer
    if transfer is not None:
        return _hashed(message, transfer.call)
    if summary is not None and not report.program_is_guess:
        module = summary.module
    name = report.function or _JIT_PREFIX.sub("", module or "")
    return _hashed(message, _SEPARATORS.sub("_", _GENERATED_SUFFIX.sub("", name)).strip("_"))


def _hashed(message: OomMessage, name: str) -> str:
    """The fingerprint of what failed, by its name."""
    parts = (message.platform, message.phase, message.memory_space, message.pool, name)
    text = "\n".join(part or "" for part in parts)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
