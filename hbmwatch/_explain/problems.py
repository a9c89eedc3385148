"""What could not be had: a sentence in the place of everything that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hbmwatch._records.profile_error import ProfileError

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("hbmwatch")


class Problems(list[str]):
    """The sentences for what could not be had."""

    def attempt(
        self, what: str, otherwise: T, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `make` gives; where it fails, `otherwise` and a sentence."""
        try:
            return make(*args, **kwargs)
        except Exception as error:
            self.say(what, error)
            return otherwise

    def say(self, what: str, error: Exception) -> None:
        """Add the sentence for something that failed, if it is not there."""
        known = isinstance(error, ProfileError)
        sentence = f"{what}: {error if known else described(error)}"
        if sentence not in self:
            self.append(sentence)
        if not known:
            _log.debug("%s could not be had", what, exc_info=error)


def described(error: BaseException) -> str:
    """The error's class and text, also where it refuses to give the text."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The error's text; "" where it refuses to give it."""
    try:
        return str(error)
    except Exception:  # a foreign __str__ may do anything, and then says nothing to us
        return ""
