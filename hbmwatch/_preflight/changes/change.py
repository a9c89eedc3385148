"""What a change is: what it says of itself, and the edits with which it can be tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.verdicts import Fit

Kind = Literal["A", "B", "C"]
NO_TIME = "no time was left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One way to make a change. It pickles, and can be made again for other arguments.

    Attributes:
        what: What is changed ("donating state['mu']").
        code: What to write in the program.
        where: The functions and lines of the user that it is about.
        unapplied: Why it can be compiled, but not be applied to a step; "" if it can be.
        cost: Of two edits of one change that fit, the one with the lower cost is better.
    """

    # Whether a later edit may name values of the program that this one makes.
    numbers_values: ClassVar[bool] = False
    # Whether it traces the user's step again, so that no earlier edit may rewrite the program.
    traces_again: ClassVar[bool] = False

    what: str
    code: str
    where: tuple[str, ...] = ()
    unapplied: str = ""
    cost: int = 0

    def on(self, call: Call) -> Call:
        """The call with the change.

        Raises:
            NothingToChange: These arguments do not allow it.
            Exception: Whatever the user's function raises where it has to be traced again.
        """
        raise NotImplementedError

    def is_worth_a_compile(self, before: Call, after: Call) -> bool:
        """Whether the call with the change may need less memory than the one without it."""
        return True


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller of `verify` or of a plan asks of a change.

    Attributes:
        paths: The arguments to change, by the first part of their pytree paths; empty: those that
            the figures of the program advise.
        axis: The axis of the mesh to shard over; None: all that are free.
        limit_bytes: What the device has, where a change that is far from it need not be tried.
        until: When to stop looking for edits, by time.monotonic().
    """

    paths: tuple[str, ...] = ()
    axis: str | None = None
    limit_bytes: int | None = None
    until: float = math.inf

    def chosen(self, call: Call) -> set[int]:
        """The positions of the arguments whose paths begin with one of `paths`.

        Raises:
            NothingToChange: There is none.
        """
        found = {
            i
            for i, leaf in enumerate(call.arguments)
            if leaf.path.startswith(self.paths) or leaf.name.startswith(self.paths)
        }
        if not found:
            named = " or ".join(self.paths)
            raise NothingToChange(f"no argument has a path that starts with {named}")
        return found


# Yields the edits to try, the most promising first. Whoever tries one may send its verdict back.
Edits = Generator[Edit, "Fit | None", None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a step that makes its program need less memory.

    Attributes:
        name: Its name ("donation").
        kind: "A" no recomputation and the same values, "B" extra work and the same values up to
            rounding, "C" other values.
        values: What it does to the values that the step computes, as a sentence.
        edits: Yields the ways to make it, for a call and the facts of its program; raises
            NothingToChange, with the reason, if there is none. The facts are None if the compiler
            gave no buffer assignment.
        repeats: Whether more of its edits are worth a try after one fits.
        frees_arguments: Whether it can help where the arguments and the outputs alone are too
            large.
        stacks: Whether it may be made once more on top of itself.
        stays: Whether the changes after it are made on top of it, because without it a compile
            takes too long.
    """

    name: str
    kind: Kind
    values: str
    edits: Callable[[Call, ProgramFacts | None, Asked], Edits]
    repeats: bool = False
    frees_arguments: bool = False
    stays: bool = False
    stacks: bool = False
