"""The user's own variants of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.tracing import varied

VARIANT = "variant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(Edit):
    """Another function with the same arguments, which replaces the step."""

    numbers_values = True

    variant: Callable[..., Any]

    def on(self, call: Call) -> Call:
        """The call of the variant."""
        return varied(call, self.variant)


def variant(function: Callable[..., Any], name: str = "") -> Replace:
    """The edit that replaces the step by a variant."""
    name = name or getattr(function, "__name__", type(function).__name__)
    return Replace(what=f"the variant {name}", code=f"use {name} for the step", variant=function)


def variants(functions: Mapping[str, Callable[..., Any]]) -> Change:
    """The change that tries variants by their names."""

    def edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
        for name, function in functions.items():
            yield variant(function, name)

    return Change(
        VARIANT,
        "C",
        "those of your variant; they were not compared with the step's",
        edits,
        frees_arguments=True,
    )
