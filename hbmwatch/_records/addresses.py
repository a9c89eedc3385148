"""Addresses of remote stores ("gs://bucket/xprof") among paths."""

from __future__ import annotations

import os
import re

from hbmwatch._records.setting_error import SettingError

# A drive of Windows has one letter; pathlib makes one slash of two.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)(?=.)")
_LIKE_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}")
# What fsspec opens through another address; a folder may have "::" in its name.
_CHAINED = re.compile(
    r"(?:simple|file|block)cache::|[A-Za-z][\w+.-]+(?::/.*)?::[A-Za-z][\w+.-]+:/", re.DOTALL
)


def remote_address(path: str | os.PathLike[str]) -> str | None:
    """The address of a remote store, with both slashes; None for a path of this host."""
    text = os.fsdecode(path)
    match = _ADDRESS.match(text)
    return f"{match[1]}://{text[match.end() :]}" if match else None


def check_address(path: str | os.PathLike[str]) -> None:
    """Check that a path which looks like an address is one that can be opened.

    Raises:
        SettingError: It is not; as a path of this host it would be a folder with a strange name.
    """
    text = os.fsdecode(path)
    if _CHAINED.match(text):
        inner = text.rpartition("::")[2]
        raise SettingError(f"{text!r} is chained: pass the address alone, as {inner or 'gs://...'}")
    like = _LIKE_ADDRESS.match(text)
    if not like:
        return
    protocol, rest = like[1], text[like.end() :]
    if not rest.strip("/"):
        raise SettingError(f"{text!r} names no bucket and no folder")
    if protocol != protocol.lower():
        address = f"{protocol.lower()}://{rest}"
        raise SettingError(f"{text!r} has a protocol in capitals: write {address}")
