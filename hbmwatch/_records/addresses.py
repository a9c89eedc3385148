"""Addresses of remote stores ("gs://bucket/xprof") among paths."""

from __future__ import annotations

import os
import re

# A drive of Windows has one letter; pathlib makes one slash of two.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)(?=.)")


def remote_address(path: str | os.PathLike[str]) -> str | None:
    """The address of a remote store, with both slashes; None for a path of this host."""
    text = os.fsdecode(path)
    match = _ADDRESS.match(text)
    return f"{match[1]}://{text[match.end() :]}" if match else None
