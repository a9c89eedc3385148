"""The error for a profile that cannot be read."""

from __future__ import annotations


class ProfileError(Exception):
    """A profile that cannot be read: what is wrong, where, and which modules it has.

    Attributes:
        path: The file or folder.
        modules: The modules in it, as "jit_step(12)".
    """

    __module__ = "hbmwatch"

    def __init__(self, text: str, path: str = "", modules: tuple[str, ...] = ()) -> None:
        super().__init__(text, path, modules)
        self.path = path
        self.modules = modules

    def __str__(self) -> str:
        return str(self.args[0])
