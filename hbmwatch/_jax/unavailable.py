"""The error of a way to the HloProto that does not work here."""

from __future__ import annotations


class Unavailable(Exception):
    """The HloProto cannot be obtained this way; the text says why."""
