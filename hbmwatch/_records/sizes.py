"""How XLA prints sizes, and how we print them.

Every size inside hbmwatch is an int in bytes; text such as "15.75G" exists only at the two edges.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LARGEST = 2**1000  # of what a float can hold
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

# Bounded, for int() refuses numbers of thousands of digits.
_NUMBER = r"-?(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,40})(?:\.\d{1,20})?"
_UNIT = r"(?:[KMGTPE](?:iB?|B)?|[Bb]ytes?|B)(?![A-Za-z0-9])"
_HEX = r"0x[0-9a-fA-F]{1,16}"

COUNT = rf"(?:{_HEX}|-?\d{{1,3}}(?:,\d{{3}}){{1,12}}|-?\d{{1,40}})"
"""A number of bytes without unit, as a regular expression."""

SIZE = rf"(?:{_HEX}|{_NUMBER} ?{_UNIT})"
"""A number with its unit, as a regular expression."""

_READ = re.compile(rf"\s*(?:({_HEX})|({_NUMBER})\s?({_UNIT})?)\s*")
_NO_SIZE = 2**64 - 1


class Size(NamedTuple):
    """A size that was read from text.

    Attributes:
        size_bytes: The size in bytes.
        resolution_bytes: The size in bytes of the last printed digit, rounded up: the true size is
            not farther off than this. 0 where the text has every byte.
    """

    size_bytes: int
    resolution_bytes: int


def read_size(text: str) -> Size | None:
    """The size that a text such as "15.75G" stands for; None where it states none.

    All units have base 1024, with "iB" and without: so do XLA:TPU ("15.75G"), XLA:GPU ("6.94GiB")
    and XLA's hex numbers. A number without unit is in bytes. 0xffffffffffffffff is what XLA prints
    for a size that it does not know.
    """
    match = _READ.fullmatch(text)
    if not match:
        return None
    hexadecimal, number, unit = match.groups()
    if hexadecimal:
        return _known(int(hexadecimal, 16), 0)
    whole, _, decimals = number.replace(",", "").partition(".")
    power = "BKMGTPE".find((unit or "B")[0].upper())
    last_digits, parts = int(whole + decimals), 10 ** len(decimals)
    scaled = 2 * last_digits * 1024**power
    exact = power == 0 and not decimals
    return _known((scaled + parts) // (2 * parts), 0 if exact else -(-(1024**power) // parts))


def _known(size_bytes: int, resolution_bytes: int) -> Size | None:
    return None if size_bytes == _NO_SIZE else Size(size_bytes, resolution_bytes)


def format_size(size_bytes: int) -> str:
    """A size for a person: "0 B", "1.5 MiB", "256 MiB", "15.75 GiB" (base 1024)."""
    magnitude = float(min(abs(size_bytes), _LARGEST))
    unit = 0
    while magnitude >= 1024 and unit < len(_UNITS) - 1:
        magnitude /= 1024
        unit += 1
    sign = "-" if size_bytes < 0 else ""
    if unit >= 3:
        return f"{sign}{magnitude:.2f} {_UNITS[unit]}"
    digits = f"{magnitude:.0f}" if magnitude >= 100 else f"{magnitude:.1f}".removesuffix(".0")
    return f"{sign}{digits} {_UNITS[unit]}"
