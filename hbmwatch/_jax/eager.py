"""The operation that JAX ran by itself, outside of any jitted function."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

# JAX's function that compiles and runs one primitive as a program of its own.
_APPLY = ("apply_primitive", "/jax/_src/dispatch.py")


def eager_primitive(
    frames: TracebackType | None, variables: Callable[[FrameType], Mapping[str, Any]]
) -> str:
    """The name of the primitive whose program failed; "" if none did, or it is not known.

    Args:
        frames: The traceback of the error.
        variables: Returns the local variables of a frame.
    """
    name = ""
    for frame, _ in traceback.walk_tb(frames):
        code = frame.f_code
        if code.co_name == _APPLY[0] and code.co_filename.replace("\\", "/").endswith(_APPLY[1]):
            name = getattr(variables(frame).get("prim"), "name", "")
    return name if isinstance(name, str) else ""
