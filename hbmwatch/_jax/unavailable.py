"""The error for an HloProto that cannot be obtained in one of the ways."""

from __future__ import annotations


class Unavailable(Exception):
    """The HloProto cannot be obtained this way; the text says why."""
