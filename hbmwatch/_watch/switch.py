"""HBMWATCH_DISABLE: the switch in the environment."""

from __future__ import annotations

import os

from hbmwatch._records.setting_error import SettingError


def is_disabled() -> bool:
    """Whether HBMWATCH_DISABLE is set; strictly parsed, so that a typo does not go unnoticed."""
    value = os.environ.get("HBMWATCH_DISABLE", "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise SettingError(f"HBMWATCH_DISABLE={value!r} is neither true nor false: use 1 or 0")
