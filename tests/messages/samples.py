"""The samples: real messages, and beside each what it states, written from the text by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hbmwatch import OomMessage, PeakOp

FOLDER = Path(__file__).parent / "samples"
SAMPLES = sorted(file.stem for file in FOLDER.glob("*.txt"))

Figure = int | str


def sample(name: str) -> str:
    """The text of a sample."""
    return (FOLDER / f"{name}.txt").read_text()


def row(name: str) -> str:
    """The row of the table that a sample is filed under."""
    stated: dict[str, str] = json.loads((FOLDER / f"{name}.json").read_text())
    return stated["row"]


def without_text(message: OomMessage | None) -> OomMessage | None:
    """A message whose text does not count."""
    return message and dataclasses.replace(message, text="")


def expected(name: str) -> OomMessage:
    """The message that a sample states, from its figures as the sample's author wrote them."""
    stated: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    del stated["row"]
    resolution = {key: coarse for key, coarse in rounded(stated) if coarse}
    fields: dict[str, Any] = {
        key: exact(value) if key.endswith("_bytes") else value
        for key, value in stated.items()
        if key not in ("totals", "ops", "resolution_bytes")
    }
    return OomMessage(
        sample(name),
        **fields,
        totals={key: exact(value) for key, value in stated.get("totals", {}).items()},
        ops=tuple(op(entry) for entry in stated.get("ops", ())),
        resolution_bytes=resolution | stated.get("resolution_bytes", {}),
    )


def op(entry: dict[str, Any]) -> PeakOp:
    """A listed allocation, its sizes from text."""
    sizes = {key: exact(value) for key, value in entry.items() if key.endswith("_bytes")}
    return PeakOp(**(entry | sizes | {"stack": tuple(entry.get("stack", ()))}))


def rounded(stated: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """How coarse each figure is, by field or total."""
    for key, value in (stated | stated.get("totals", {})).items():
        if isinstance(value, str) and re.fullmatch(r"-?[\d.]+[KMGT](i?B)?", value):
            _, unit, decimals = parts(value)
            yield key, math.ceil(1024**unit / 10**decimals)


def exact(value: Figure) -> int:
    """The bytes of an int or of a text such as "15.75G"."""
    if isinstance(value, int):
        return value
    number, unit, _ = parts(value)
    return round(number * float(1024**unit))


def parts(value: str) -> tuple[float, int, int]:
    """A size's number, its power of 1024 and its decimals."""
    number = value.rstrip("KMGTiB")
    return float(number), "BKMGT".index(value[len(number)]), len(number.partition(".")[2])
