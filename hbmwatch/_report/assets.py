"""The files of the pages, and the policy under which a page runs nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources


@functools.cache
def asset(name: str) -> str:
    """The text of a file in the folder `page`."""
    folder = resources.files("hbmwatch._report").joinpath("page")
    return folder.joinpath(name).read_text(encoding="utf-8")


def policy(**texts: str) -> str:
    """A content security policy that allows these texts only, by kind: style=..., script=..."""
    allowed = []
    for kind, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed.append(f"{kind}-src 'sha256-{digest}'")
    return "; ".join(["default-src 'none'", "img-src data:", *allowed])
