"""A variable of the environment, or an address, that cannot be used."""

from __future__ import annotations


class SettingError(ValueError):
    """A variable of the environment has a value that is not allowed, or an address cannot be one.

    The text has the value, and the variable's name.
    """
