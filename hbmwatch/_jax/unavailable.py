"""The error of a way to the HloProto that is closed."""

from __future__ import annotations


class Unavailable(Exception):
    """The HloProto cannot be had this way; the text says why."""
