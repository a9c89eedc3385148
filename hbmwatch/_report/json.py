"""Reports as JSON-able values, and back; and the fingerprint that groups them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hbmwatch._records.report import ReportData


T = TypeVar("T")

SCHEMA = 1

# By the first word of a field's annotation; the others are str and names of Literals of texts.
_KINDS: Mapping[str, type[Any]] = {"Mapping": Mapping, "int": int, "npt": list, "tuple": list}
_ITEMS: Mapping[str, type[Any]] = {
    "tuple[str, ...]": str,
    "tuple[int, ...]": int,
    "npt.NDArray[np.int64]": int,
    "Mapping[str, int]": int,
    "Mapping[str, str]": str,
    "Mapping[str, Mapping[str, int]]": Mapping,
}
# A message's text may hold 40 digits and a unit; far beyond that no size can be shown.
_NO_SIZE = 10**64
_NAME = re.compile(r"\w+")
_JIT_PREFIX = re.compile(r"^(?:jit|pmap|pjit|xmap)_+")
_OTHER = re.compile(r"[^A-Za-z0-9]+|\d+")


def report_dict(report: ReportData) -> dict[str, Any]:
    """The report as JSON-able values, under a schema version."""
    fields: dict[str, Any] = plain(report)
    return {"schema": SCHEMA, **fields}


def plain(value: Any) -> Any:
    """A record, or what is in one, as dicts, lists, texts and numbers."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def rebuild_report(record: type[T], values: Any, records: Iterable[type[Any]]) -> T:
    """The record that report_dict made values of.

    A field that this version does not know is passed over: a schema version may get more of them.

    Args:
        record: The class of the report.
        values: What to_dict() gave, or the same after a round trip through JSON.
        records: The classes of the records that it holds.

    Raises:
        ValueError: Another schema version, or values that are no report.
    """
    schema = values.get("schema") if isinstance(values, Mapping) else None
    if schema != SCHEMA:
        raise ValueError(f'no report of schema {SCHEMA}: "schema" is {_short(schema)}')
    return _rebuild(record, values, {r.__name__: r for r in records}, "report")


def _rebuild(record: type[T], values: Any, records: Mapping[str, type[Any]], where: str) -> T:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is {_short(values)}, not a mapping")
    restored = {
        field.name: _restored(field, values[field.name], records, f"{where}.{field.name}")
        for field in dataclasses.fields(record)  # type: ignore[arg-type]  # T is a record
        if field.name in values
    }
    try:
        return record(**restored)
    except TypeError as error:
        raise ValueError(f"{where} is incomplete: {error}") from error


def _restored(
    field: dataclasses.Field[Any], value: Any, records: Mapping[str, type[Any]], where: str
) -> Any:
    """A field's value: records, tuples and the array as they were."""
    annotation = str(field.type)
    if value is None and "None" in annotation:
        return None
    inner = next((records[n] for n in _NAME.findall(annotation) if n in records), None)
    if inner is not None and not annotation.startswith("tuple"):
        return _rebuild(inner, value, records, where)
    _check(annotation, value, where)
    if inner is not None:
        return tuple(_rebuild(inner, v, records, f"{where}[{n}]") for n, v in enumerate(value))
    if annotation.startswith("npt"):
        return _array(value, where)
    return tuple(value) if isinstance(value, list) else value


def _check(annotation: str, value: Any, where: str) -> None:
    """Raises ValueError where a value is not of the kind that the field's annotation says."""
    kind = _KINDS.get(re.split(r"\W", annotation, maxsplit=1)[0], str)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where} is {_short(value)}, not a {kind.__name__.lower()}")
    _check_size(value, where)
    if annotation not in _ITEMS:
        return
    items: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
    for item in items:
        if not isinstance(item, _ITEMS[annotation]) or isinstance(item, bool):
            raise ValueError(f"{where} holds {_short(item)}")
        _check_size(item, where)


def _check_size(value: Any, where: str) -> None:
    if isinstance(value, int) and abs(value) >= _NO_SIZE:
        raise ValueError(f"{where} has a number of more than 64 digits")


def _array(value: list[int], where: str) -> Any:
    import numpy as np  # slow to load, and not needed for a report of a message alone

    try:
        array = np.asarray(value, dtype=np.int64)
    except OverflowError as error:
        raise ValueError(f"{where} holds an int of more than 64 bits") from error
    array.flags.writeable = False
    return array


def _short(value: Any) -> str:
    return repr(value)[:80]


def fingerprint(report: ReportData) -> str:
    """The failures of one function in one memory, whatever the sizes, as 16 hex digits.

    The order of the buffers by size is not in it, nor a shape, an instruction's number, a line or
    a version: two failures that differ in batch size alone have one fingerprint.
    """
    message = report.message
    module = report.summary.module if report.summary else message.module
    name = report.function or _JIT_PREFIX.sub("", module or "")
    parts = (
        message.platform,
        message.phase,
        message.memory_space,
        message.pool,
        _OTHER.sub("_", name).strip("_"),
    )
    text = "\n".join(part or "" for part in parts)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
