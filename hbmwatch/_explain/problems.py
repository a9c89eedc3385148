"""Collects one sentence per step that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hbmwatch._records.failures import log_failure
from hbmwatch._records.profile_error import ProfileError

P = ParamSpec("P")
T = TypeVar("T")


class Problems(list[str]):
    """The sentences of a report's `missing`."""

    def try_or_default(
        self, label: str, default: T, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `make` returns; where it fails, `default`, and a sentence under this label."""
        try:
            return make(*args, **kwargs)
        except Exception as error:
            self.record(label, error)
            return default

    def record(self, label: str, error: Exception) -> None:
        """Add the sentence for something that failed, unless it has been added already."""
        expected = isinstance(error, ProfileError)
        sentence = f"{label}: {error if expected else described(error)}"
        if sentence not in self:
            self.append(sentence)
        if not expected:
            log_failure(f"{label}: unavailable", error)


def described(error: BaseException) -> str:
    """The error's class and text, also where its __str__ fails."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The error's text; "" where its __str__ fails."""
    try:
        return str(error)
    except Exception:  # a foreign __str__ may raise anything
        return ""
