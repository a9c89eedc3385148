"""A variable of the environment that cannot be used."""

from __future__ import annotations


class SettingError(ValueError):
    """A variable of the environment has a value that is not allowed; the text names both."""
