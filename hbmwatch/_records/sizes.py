"""Reads the sizes that XLA prints, and prints sizes.

Every size inside hbmwatch is an int in bytes; text such as "15.75G" exists only at the two edges.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LARGEST = 2**1000  # a float can hold it
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

# Bounded, as int() refuses numbers of thousands of digits.
# People separate thousands as in "1,024", "1_024", "1'024" and "1 024".
_SEPARATED = r"(?:\d{1,3}(?:[,_']\d{3}){1,12}|[1-9]\d{0,2}(?: \d{3}){1,12}(?!\d))"
_NUMBER = rf"-?(?:{_SEPARATED}|\d{{1,40}})(?:\.\d{{1,20}})?"
_UNIT = r"(?:[KMGTPE](?:iB?|IB|B)?|[Bb]ytes?|BYTES?|B)(?![A-Za-z0-9])"
_HEX = r"0x[0-9a-fA-F]{1,16}"

COUNT = rf"(?:{_HEX}|-?{_SEPARATED}|-?\d{{1,40}})"
"""A number of bytes without unit, as a regular expression."""

SIZE = rf"(?:{_HEX}|{_NUMBER} ?{_UNIT})"
"""A number with its unit, as a regular expression."""

_READ = re.compile(rf"\s*(?:({_HEX})|({_NUMBER})\s?({_UNIT})?)\s*")
_SEPARATORS = re.compile("[,_' ]")
_SMALLEST_WITHOUT_UNIT = 2**20
_DIGITS = "0123456789"
_NO_SIZE = 2**64 - 1


class Size(NamedTuple):
    """A size that was read from text.

    Attributes:
        size_bytes: The size in bytes.
        resolution_bytes: The size in bytes of the last printed digit, rounded up: the true size
            differs by at most this. 0 if the text has every byte.
    """

    size_bytes: int
    resolution_bytes: int


def read_size(text: str) -> Size | None:
    """The size in a text such as "15.75G"; None if the text is not a size.

    All units have base 1024, with "iB" and without, as in XLA:TPU ("15.75G") and XLA:GPU
    ("6.94GiB"). A number without a unit is in bytes. XLA prints 0xffffffffffffffff for a size that
    it does not know; that is None, too.
    """
    match = _READ.fullmatch(text)
    if not match:
        return None
    hexadecimal, number, unit = match.groups()
    if hexadecimal:
        return _known(int(hexadecimal, 16), 0)
    whole, _, decimals = _SEPARATORS.sub("", number).partition(".")
    power = "BKMGTPE".find((unit or "B")[0].upper())
    last_digits, parts = int(whole + decimals), 10 ** len(decimals)
    scaled = 2 * last_digits * 1024**power
    exact = power == 0 and not decimals
    return _known((scaled + parts) // (2 * parts), 0 if exact else -(-(1024**power) // parts))


def _known(size_bytes: int, resolution_bytes: int) -> Size | None:
    """A size, unless it is XLA's number for an unknown one."""
    return None if size_bytes == _NO_SIZE else Size(size_bytes, resolution_bytes)


def given_size(text: str, example: str) -> int:
    """The size that a person gives as an option or in a marker, in bytes.

    It is read as read_size does, with units in any case: "16GB", "16gb" and "16GiB" are all
    16 * 2**30 bytes. A small number without a unit is one whose unit was forgotten.

    Args:
        text: The size.
        example: A number and a unit, which the error proposes: "80GiB".

    Raises:
        ValueError: It is no size, it is negative, or it is a number below 2**20 without a unit.
    """
    shown = text[:80]
    found = read_size(text) or read_size(_with_unit_in_xla_case(text))
    if found is None or found.size_bytes < 0:
        raise ValueError(f"{shown!r} is not a size such as {example}")
    has_unit = any(character.isalpha() for character in text)
    if 0 < found.size_bytes < _SMALLEST_WITHOUT_UNIT and not has_unit:
        raise ValueError(f"{shown!r} has no unit: write {shown.strip()}{example.lstrip(_DIGITS)}")
    return found.size_bytes


def _with_unit_in_xla_case(text: str) -> str:
    """A size whose unit has the case in which XLA prints it: "80 GB", "1.5KiB"."""
    return text.upper().replace("IB", "iB").replace("BYTE", "byte").replace("byteS", "bytes")


def format_size(size_bytes: int) -> str:
    """A size for a person: "0 B", "1.5 MiB", "256 MiB", "15.75 GiB" (base 1024)."""
    magnitude = min(abs(size_bytes), _LARGEST)
    power, number = 0, _number(magnitude, 0)
    while float(number) >= 1024 and power < len(_UNITS) - 1:  # as printed: 1023.9 may round up
        power += 1
        number = _number(magnitude, power)
    return f"{'-' if size_bytes < 0 else ''}{number} {_UNITS[power]}"


def format_change(size_bytes: int) -> str:
    """A difference of two sizes, with its sign: "+1.50 GiB", "-256 MiB", "+0 B"."""
    return f"{'+' if size_bytes >= 0 else ''}{format_size(size_bytes)}"


def _number(magnitude: int, power: int) -> str:
    """A size over 1024**power: two decimals from GiB on, else up to three digits."""
    scaled = magnitude / 1024**power
    if power >= 3:
        return f"{scaled:.2f}"
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}".removesuffix(".0")
