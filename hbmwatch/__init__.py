"""hbmwatch: a JAX step that runs out of device memory says what filled it."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hbmwatch._errors import HbmOomError as HbmOomError
    from hbmwatch._message import parse_oom as parse_oom
    from hbmwatch._message import parse_ooms as parse_ooms
    from hbmwatch._profile import load_peak_summary as load_peak_summary
    from hbmwatch._records import DeviceMemory as DeviceMemory
    from hbmwatch._records import Finding as Finding
    from hbmwatch._records import LiveArrays as LiveArrays
    from hbmwatch._records import OomMessage as OomMessage
    from hbmwatch._records import OomReport as OomReport
    from hbmwatch._records import PeakOp as PeakOp
    from hbmwatch._records import PeakSummary as PeakSummary
    from hbmwatch._records import ProfileError as ProfileError
    from hbmwatch._verify import Verification as Verification
    from hbmwatch._verify import verify as verify
    from hbmwatch._watch import watch_hbm as watch_hbm

# Loaded on first use, so that reading a log needs no jax, and watching a step no protobuf.
_HOME = {
    "DeviceMemory": "_records",
    "Finding": "_records",
    "HbmOomError": "_errors",
    "LiveArrays": "_records",
    "OomMessage": "_records",
    "OomReport": "_records",
    "PeakOp": "_records",
    "PeakSummary": "_records",
    "ProfileError": "_records",
    "Verification": "_verify",
    "load_peak_summary": "_profile",
    "parse_oom": "_message",
    "parse_ooms": "_message",
    "verify": "_verify",
    "watch_hbm": "_watch",
}

__all__ = [
    "DeviceMemory",
    "Finding",
    "HbmOomError",
    "LiveArrays",
    "OomMessage",
    "OomReport",
    "PeakOp",
    "PeakSummary",
    "ProfileError",
    "Verification",
    "__version__",
    "load_peak_summary",
    "parse_oom",
    "parse_ooms",
    "verify",
    "watch_hbm",
]

__version__ = "0.1.0"

logging.getLogger("hbmwatch").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
