"""The files of the pages, and the policy under which a page runs nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from importlib import resources

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


@functools.cache
def asset(name: str) -> str:
    """The text of a file in the folder `page`."""
    folder = resources.files("hbmwatch._report").joinpath("page")
    return folder.joinpath(name).read_text(encoding="utf-8")


@functools.cache
def script_of(*names: str) -> str:
    """These modules as one script, without their imports and exports.

    Args:
        names: The modules in an order in which each imports only earlier ones.
    """
    modules = (_EXPORT.sub("", _IMPORT.sub("", asset(f"{name}.mjs"))) for name in names)
    return '"use strict";\n(() => {\n' + "\n".join(modules) + "})();\n"


def data_json(value: object) -> str:
    """JSON that may stand inside a script element: no text in it can end that."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy(**texts: str) -> str:
    """A content security policy that allows these texts only, by kind: style=..., script=..."""
    allowed = []
    for kind, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed.append(f"{kind}-src 'sha256-{digest}'")
    return "; ".join(["default-src 'none'", "img-src data:", *allowed])
