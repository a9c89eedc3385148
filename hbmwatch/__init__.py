"""hbmwatch: a JAX step that runs out of device memory says what filled it."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from hbmwatch._version import __version__

if TYPE_CHECKING:
    from hbmwatch._explain.errors import HbmOomError as HbmOomError
    from hbmwatch._messages.parse import parse_oom as parse_oom
    from hbmwatch._messages.parse import parse_ooms as parse_ooms
    from hbmwatch._preflight.fits import fits as fits
    from hbmwatch._preflight.largest import largest as largest
    from hbmwatch._preflight.plan import plan as plan
    from hbmwatch._preflight.plans import Plan as Plan
    from hbmwatch._preflight.plans import PlanRow as PlanRow
    from hbmwatch._preflight.verdicts import Fit as Fit
    from hbmwatch._preflight.verdicts import Largest as Largest
    from hbmwatch._preflight.verify import Verification as Verification
    from hbmwatch._preflight.verify import verify as verify
    from hbmwatch._profiles.load import load_peak_summary as load_peak_summary
    from hbmwatch._records.message import OomMessage as OomMessage
    from hbmwatch._records.peak import PeakSummary as PeakSummary
    from hbmwatch._records.peak_op import PeakOp as PeakOp
    from hbmwatch._records.process import Process as Process
    from hbmwatch._records.profile_error import ProfileError as ProfileError
    from hbmwatch._records.report import DeviceMemory as DeviceMemory
    from hbmwatch._records.report import Finding as Finding
    from hbmwatch._records.report import LiveArrays as LiveArrays
    from hbmwatch._records.report import Transfer as Transfer
    from hbmwatch._report.folded import FoldedReport as FoldedReport
    from hbmwatch._report.folded import fold_reports as fold_reports
    from hbmwatch._report.report import OomReport as OomReport
    from hbmwatch._watch.decorator import watch_hbm as watch_hbm

# Loaded on first use, so that reading a log needs no jax, and watching a step no protobuf.
_HOME = {
    "DeviceMemory": "_records.report",
    "Finding": "_records.report",
    "Fit": "_preflight.verdicts",
    "FoldedReport": "_report.folded",
    "HbmOomError": "_explain.errors",
    "Largest": "_preflight.verdicts",
    "LiveArrays": "_records.report",
    "OomMessage": "_records.message",
    "OomReport": "_report.report",
    "PeakOp": "_records.peak_op",
    "PeakSummary": "_records.peak",
    "Plan": "_preflight.plans",
    "PlanRow": "_preflight.plans",
    "Process": "_records.process",
    "ProfileError": "_records.profile_error",
    "Transfer": "_records.report",
    "Verification": "_preflight.verify",
    "fits": "_preflight.fits",
    "fold_reports": "_report.folded",
    "largest": "_preflight.largest",
    "load_ipython_extension": "_watch.ipython",
    "load_peak_summary": "_profiles.load",
    "parse_oom": "_messages.parse",
    "parse_ooms": "_messages.parse",
    "plan": "_preflight.plan",
    "unload_ipython_extension": "_watch.ipython",
    "verify": "_preflight.verify",
    "watch_hbm": "_watch.decorator",
}

__all__ = [
    "DeviceMemory",
    "Finding",
    "Fit",
    "FoldedReport",
    "HbmOomError",
    "Largest",
    "LiveArrays",
    "OomMessage",
    "OomReport",
    "PeakOp",
    "PeakSummary",
    "Plan",
    "PlanRow",
    "Process",
    "ProfileError",
    "Transfer",
    "Verification",
    "__version__",
    "fits",
    "fold_reports",
    "largest",
    "load_peak_summary",
    "parse_oom",
    "parse_ooms",
    "plan",
    "verify",
    "watch_hbm",
]

logging.getLogger("hbmwatch").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
