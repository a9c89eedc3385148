"""Names of the cells of a notebook, in which code has the name of a temporary file."""

from __future__ import annotations

import re
import sys
from typing import Any

_MAY_BE_CELL = re.compile(r"ipykernel_\d|^<ipython-input-")


def shown_file(file: str) -> str:
    """A file as people know it: "In[3]" for the code of a cell that ran in this process.

    Args:
        file: The file of a frame ("/tmp/ipykernel_7/1234.py").
    """
    if not _MAY_BE_CELL.search(file):
        return file
    try:
        ipython: Any = sys.modules["IPython"]
        kind, name = ipython.get_ipython().compile.format_code_name(file)
        return str(name) if kind == "Cell" else file
    except Exception:  # no IPython runs, or an older one
        return file
