"""What a buffer is for, as far as its pytree path or its op_name says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hbmwatch._records.opcodes import is_collective
from hbmwatch._records.paths import path_keys

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp

OPTIMIZER = "optimizer state"
ROLES: Mapping[str, str] = {
    "parameters": "arguments that are parameters or weights",
    "optimizer state": "arguments that are an optimizer's state",
    "parameters or optimizer state": "arguments of a training step that it returns updated",
    "cache": "arguments that are a cache, such as keys and values",
    "updated arguments": "arguments of another program that it returns updated",
    "batch": "arguments with a batch dimension",
    "other arguments": "arguments that are not returned",
    "arguments": "arguments whose use is unknown",
    "outputs": "results that reuse no argument's memory",
    "residuals saved for backward": "computed in the forward pass, kept for the backward pass",
    "recomputed by jax.checkpoint": "recomputed for the backward pass",
    "gradients": "computed in the backward pass, in the shape of a parameter",
    "backward temporaries": "computed in the backward pass",
    "forward temporaries": "computed in the forward pass",
    "collectives": "received from other devices",
    "other temporaries": "temporary buffers whose use is unknown",
    "constants": "constants of the program",
    "small buffers": "all buffers smaller than 16 KiB",
}
"""Role name -> what it means, in the order in which roles are shown."""

# Keys of a pytree path. The first key that says something decides, as what follows it names a
# layer: params['velocity_net'] holds parameters, opt_state[0].mu['kernel'] optimizer state.
_OPTIMIZER = re.compile(
    r"(inner_)?opt(im(izer)?|ax)?(_?states?)?|adam\w*|mu|nu|moment(s|a|um\w*)?|velocit(y|ies)"
    r"|traces?|exp_avg\w*|(\w+_)?ema(_\w+)?|acc_grads|v_row|v_col|sum_of_squares|param_states",
    re.IGNORECASE,
)
_PARAMETERS = re.compile(
    r"params?|(?!hyper)\w+_params|parameters?|theta|w\d*|weights?|weight_[ih]h\w*|(\w+_)?kernel"
    r"|bias(es)?|scale|(\w+_)?embed(ding)?s?|layers?(_\d+)?|blocks?(_\d+)?|(\w+_)?model",
    re.IGNORECASE,
)
_NEITHER = re.compile(
    r"batch(_\w+)?|data|inputs?|examples?|targets?|labels?|hyper_?params?|rngs?",
    re.IGNORECASE,
)
_CACHE = re.compile(r"(\w+_)?caches?|kv|cached_(key|value)s?|past_key_values", re.IGNORECASE)
# Keys that are an optimizer's in training, and may be anything in a simulation.
_AMBIGUOUS = re.compile(
    r"mu|nu|moment(s|a|um\w*)?|velocit(y|ies)|traces?|(\w+_)?ema(_\w+)?", re.IGNORECASE
)
# flax's optimizers hold the model that they update.
_HOLDS_MODEL = re.compile(r"optimizer", re.IGNORECASE)
_HELD_MODEL = re.compile(r"model|target", re.IGNORECASE)


def role_of(op: PeakOp) -> str:
    """The role of a buffer: its own if the dataflow gave it one, else what its names say."""
    if op.role:
        return op.role
    if not op.instruction:
        return "small buffers"
    if op.kind == "parameter":
        return argument_role(op.op_name) or "arguments"
    return (
        f"{op.kind}s"
        if op.kind in ("output", "constant")
        else temporary_role(op.opcode, op.op_name)
    )


def argument_role(path: str) -> str:
    """The role that the pytree path of an argument says.

    Returns:
        "parameters", "optimizer state", "cache", or "" if the path says none of these.
    """
    keys = _keys(path)
    for key, following in itertools.pairwise([*keys, ""]):
        if _HOLDS_MODEL.fullmatch(key) and _HELD_MODEL.fullmatch(following):
            return "parameters"
        if _NEITHER.fullmatch(key):
            return ""
        if _CACHE.fullmatch(key):
            return "cache"
        if _OPTIMIZER.fullmatch(key):
            return OPTIMIZER
        if _PARAMETERS.fullmatch(key):
            return "parameters"
    return ""


def is_ambiguous(path: str) -> bool:
    """Whether the key that names an optimizer's state may also name the state of a simulation."""
    found = next((key for key in _keys(path) if _OPTIMIZER.fullmatch(key)), "")
    return _AMBIGUOUS.fullmatch(found) is not None


def _keys(path: str) -> list[str]:
    """The keys of a path, without brackets, dots and quotes."""
    return [key.strip(".[]'\"") for key in path_keys(path)]


def temporary_role(opcode: str, op_name: str) -> str:
    """The role that the opcode and the op_name of a temporary buffer say."""
    if is_collective(opcode):
        return "collectives"
    if "rematted_computation" in op_name:
        return "recomputed by jax.checkpoint"
    if "transpose(" in op_name:
        return "backward temporaries"
    return "forward temporaries" if "jvp(" in op_name else "other temporaries"
