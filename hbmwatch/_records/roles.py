"""What a buffer is for: by what the program told, else as far as its path and op_name tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp

ROLES: Mapping[str, str] = {
    "parameters": "arguments that are parameters or weights",
    "optimizer state": "arguments that are an optimizer's state",
    "parameters or optimizer state": "arguments that come back changed",
    "batch": "arguments with the batch's dimension",
    "other arguments": "arguments that do not come back",
    "arguments": "arguments of which no more is known",
    "outputs": "results in memory of their own",
    "residuals saved for backward": "made by the forward pass, kept for the backward pass",
    "recomputed by jax.checkpoint": "made again for the backward pass",
    "gradients": "made by the backward pass, in the shape of a parameter",
    "backward temporaries": "made by the backward pass",
    "forward temporaries": "made by the forward pass",
    "collectives": "made by communication between devices",
    "other temporaries": "temporary buffers of which no more is known",
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
_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "send", "recv")


def role_of(op: PeakOp) -> str:
    """The role of a buffer, one of ROLES unless the program told another one."""
    if op.role:
        return op.role
    if not op.instruction:
        return "small buffers"
    if op.kind == "parameter":
        return _argument(op.op_name)
    return f"{op.kind}s" if op.kind in ("output", "constant") else _temporary(op)


def _argument(path: str) -> str:
    if _OPTIMIZER.search(path):
        return "optimizer state"
    return "parameters" if _PARAMETERS.search(path) else "arguments"


def _temporary(op: PeakOp) -> str:
    if op.opcode.startswith(_COLLECTIVES):
        return "collectives"
    if "rematted_computation" in op.op_name:
        return "recomputed by jax.checkpoint"
    if "transpose(" in op.op_name:
        return "backward temporaries"
    return "forward temporaries" if "jvp(" in op.op_name else "other temporaries"
