"""What a buffer is for, as far as its kind, its path and its op_name tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hbmwatch._records import PeakOp

ROLES: Mapping[str, str] = {
    "parameters": "arguments whose path names parameters or weights",
    "optimizer state": "arguments whose path names an optimizer's state",
    "arguments": "other arguments",
    "outputs": "results in memory of their own",
    "residuals": "made by the forward pass (jvp), kept for the backward pass",
    "gradients": "made by the backward pass (transpose)",
    "recomputed": "made again by jax.checkpoint for the backward pass",
    "communication": "made by collectives",
    "temporaries": "other temporary buffers",
    "constants": "constants of the program",
    "small buffers": "all buffers below 16 KiB",
}
"""Role name -> what it means, in the order in which roles are shown."""

_OPTIMIZER = re.compile(
    r"opt(imizer)?_?state|optimizer|\bopt\b|adam|momentum|velocity|exp_avg"
    r"|(^|[^a-z])(mu|nu)([^a-z]|$)",
    re.IGNORECASE,
)
_PARAMETERS = re.compile(
    r"param|weight|kernel|embedding|(^|[^a-z])(w|bias|scale|model|theta)([^a-z]|$)", re.IGNORECASE
)
_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")


def role_of(op: PeakOp) -> str:
    """The role of a buffer, one of ROLES."""
    if not op.instruction:
        return "small buffers"
    if op.kind == "parameter":
        return _argument(op.op_name)
    if op.kind in ("output", "constant"):
        return f"{op.kind}s"
    return "temporaries" if op.kind == "thread-local" else _temporary(op)


def _argument(path: str) -> str:
    if _OPTIMIZER.search(path):
        return "optimizer state"
    return "parameters" if _PARAMETERS.search(path) else "arguments"


def _temporary(op: PeakOp) -> str:
    if op.opcode.startswith(_COLLECTIVES):
        return "communication"
    if "rematted_computation" in op.op_name:
        return "recomputed"
    if "transpose(" in op.op_name:
        return "gradients"
    return "residuals" if "jvp(" in op.op_name else "temporaries"
