"""How XLA prints sizes, and how we print them.

Every size inside hbmwatch is an int in bytes; text such as "15.75G" exists only at the two edges.
"""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_size(size_bytes: int) -> str:
    """A size for a person: "0 B", "1.5 MiB", "256 MiB", "15.75 GiB" (base 1024)."""
    magnitude = float(abs(size_bytes))
    unit = 0
    while magnitude >= 1024 and unit < len(_UNITS) - 1:
        magnitude /= 1024
        unit += 1
    sign = "-" if size_bytes < 0 else ""
    if unit >= 3:
        return f"{sign}{magnitude:.2f} {_UNITS[unit]}"
    digits = f"{magnitude:.0f}" if magnitude >= 100 else f"{magnitude:.1f}".removesuffix(".0")
    return f"{sign}{digits} {_UNITS[unit]}"
