"""Copies of host arrays to a device, as the frames of JAX show one that failed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, NamedTuple

# JAX's function through which host arrays go to devices, and the file that it is in.
_COPY = ("batched_device_put", "/jax/_src/interpreters/pxla.py")
_OWN_FILES = "/jax/_src/"
_SHORT = (  # as XLA names element types: "f32", "s8", "bf16", "f8e4m3fn"
    (re.compile(r"^bool$"), "pred"),
    (re.compile(r"^bfloat"), "bf"),
    (re.compile(r"^(float|uint|complex)"), lambda found: found[1][0]),
    (re.compile(r"^int"), "s"),
    (re.compile(r"(?<=^f\d)_"), ""),
)


class Copy(NamedTuple):
    """A host array that could not be copied to a device.

    Attributes:
        call: The function of JAX that was called ("device_put").
        shape: The array's dtype and dimensions, as XLA writes them ("f32[8,4]").
        size_bytes: The size of the whole array.
        devices: The devices to which it was to be copied.
    """

    call: str
    shape: str
    size_bytes: int
    devices: list[Any]


def failed_copy(
    frames: TracebackType | None, variables: Callable[[FrameType], Mapping[str, Any]]
) -> Copy | None:
    """The copy that failed; None if something else did, or if this JAX has other frames.

    Args:
        frames: The traceback of the error.
        variables: Returns the local variables of a frame.
    """
    call = ""
    for frame, _ in traceback.walk_tb(frames):
        code = frame.f_code
        file = code.co_filename.replace("\\", "/")
        if _OWN_FILES not in file:
            call = ""  # the user's code, called by JAX
        elif not call:
            call = code.co_name
        if code.co_name == _COPY[0] and file.endswith(_COPY[1]):
            values = variables(frame)
            return _copy(call, values.get("aval"), values.get("devices"))
    return None


def _copy(call: str, aval: Any, devices: Any) -> Copy | None:
    """A copy by the variables of JAX's function; None where these are not what they were."""
    try:
        dimensions = ",".join(map(str, aval.shape))
        size = int(aval.size) * int(aval.dtype.itemsize)
        return Copy(call, f"{short_dtype(aval.dtype.name)}[{dimensions}]", size, list(devices))
    except (AttributeError, TypeError, ValueError):
        return None


def short_dtype(name: str) -> str:
    """XLA's name of a dtype: "f32" of "float32"."""
    for pattern, short in _SHORT:
        name = pattern.sub(short, name)
    return name
