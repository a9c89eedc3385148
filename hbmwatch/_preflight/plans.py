"""What a plan found: the changes that were tried, and which of them make a step fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.assigned import Proof
from hbmwatch._preflight.changes.change import Edit, Kind
from hbmwatch._preflight.changes.variants import VARIANT
from hbmwatch._preflight.verdicts import SCHEMA, Fit
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

_INDENT = "     "
# What `kind` says, as a plan explains it where a kind is first shown.
_KINDS: Mapping[Kind, str] = {
    "A": "the same values, no recomputation",
    "B": "the same values up to rounding",
    "C": "other values",
}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One change to a step, or several together, and what the compiler says of it.

    All sizes are per device.

    Attributes:
        changes: The names of the changes ("donation", "pieces").
        kind: "A" no recomputation and the same values, "B" extra work and the same values up to
            rounding, "C" other values.
        what: What was changed ("donating state['mu']").
        code: What to write in the program, a line for each change.
        where: The user's lines that it is about ("model.py:40").
        values: What it does to the values that the step computes.
        fit: The compiler's verdict, with its report.
        edits: The changes, as `apply` makes them.
    """

    __module__ = "hbmwatch"

    changes: tuple[str, ...]
    kind: Kind
    what: str
    code: str
    where: tuple[str, ...]
    values: str
    fit: Fit
    edits: tuple[Edit, ...] = field(default=(), repr=False)

    @property
    def fits(self) -> bool | None:
        """Whether the changed step fits; None if unknown (see fit.error)."""
        return self.fit.fits

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the changed step."""
        return self.fit.peak_bytes

    @property
    def total_bytes(self) -> int | None:
        """All that the compiler allocates for the changed step, without its code."""
        return self.fit.total_bytes

    @property
    def limit_bytes(self) -> int | None:
        """What the device has for a program."""
        return self.fit.limit_bytes

    @property
    def proof(self) -> Proof:
        """ "compiled" if the compiler finished, "assigned" if it stopped at the assignment."""
        return self.fit.proof

    def apply(self, step: Callable[..., Any]) -> Any:
        """The step with this change: jitted, with the same signature, and watched if it was.

        Each signature of its arguments is traced and changed once. Donation, static arguments and
        shardings are those of the step, except for what the change itself says.

        Args:
            step: The step that was planned, or another one with the same program.

        Raises:
            ValueError: The change is to what the caller passes, such as the size of the batch.
            TypeError: The step is jitted by a library other than jax, flax nnx and equinox.
        """
        return apply(step, self.edits)

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON-able values, without the report of its verdict."""
        verdict = self.fit.to_dict()
        return {
            "changes": list(self.changes),
            "kind": self.kind,
            "what": self.what,
            "code": self.code,
            "where": list(self.where),
            "values": self.values,
            **{name: verdict[name] for name in verdict if name not in ("schema", "report")},
        }

    def __str__(self) -> str:
        return self._line(self.kind)

    def _line(self, kind: str) -> str:
        """The changes, their kind as it is shown, and the verdict."""
        return f"{' + '.join(self.changes)} [{kind}]: {self.fit}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes with which a step that does not fit a device fits, according to its compiler.

    Attributes:
        before: The verdict on the step as it is.
        rows: What was tried, best first: what fits, without recomputation, with the same values up
            to rounding, with other values; then what does not fit, by its peak.
        untried: Change -> why it was not tried.
        notes: Sentences on what no change can do.
        keep_values: Whether a change with other values may be the best one.
        error: Why the search ended early; "" otherwise.
        seconds: How long it took.
    """

    __module__ = "hbmwatch"

    before: Fit
    rows: tuple[PlanRow, ...] = ()
    untried: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    keep_values: bool = True
    error: str = ""
    seconds: float = 0.0

    @property
    def best(self) -> PlanRow | None:
        """The best row that fits; None if there is none.

        With keep_values, a change with other values is never the best one, but a variant that the
        caller gave can be.
        """
        return next((row for row in self.rows if row.fits and self._is_allowed(row)), None)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all compiles."""
        return self.before.cpu_seconds + sum(row.fit.cpu_seconds for row in self.rows)

    def apply(self, step: Callable[..., Any]) -> Any:
        """The step with the best change; the step itself if it fits as it is.

        Args:
            step: The step that was planned, or another one with the same program.

        Raises:
            ValueError: None of the changes that were tried makes it fit.
            TypeError: The step is jitted by a library other than jax, flax nnx and equinox.
        """
        if self.best is not None:
            return self.best.apply(step)
        if self.before.fits:
            return step
        others = " with the same values" if any(row.fits for row in self.rows) else ""
        raise ValueError(
            f"tried {plural(len(self.rows), 'change')}; {none_fits(self.rows)}{others}. "
            "plan.rows lists what was tried, and row.apply(step) applies a row"
        )

    def _is_allowed(self, row: PlanRow) -> bool:
        return row.kind != "C" or not self.keep_values or row.changes == (VARIANT,)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values, with a "schema" version."""
        best = self.best
        return {
            "schema": SCHEMA,
            "target": self.before.target,
            "before": self.before.to_dict(),
            "best": None if best is None else self.rows.index(best),
            "rows": [row.to_dict() for row in self.rows],
            "untried": dict(self.untried),
            "notes": list(self.notes),
            "keep_values": self.keep_values,
            "error": self.error,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with two memory curves: of the step as it is, and with the best change.

        Raises:
            OSError: It cannot be written.
        """
        from hbmwatch._report.curves import curves_page

        named = [("as it is", self.before)]
        if self.best is not None:
            named.append((" + ".join(self.best.changes), self.best.fit))
        curves = [
            (name, fit.report.summary) for name, fit in named if fit.report.summary is not None
        ]
        title = f"{self.before.report.function or 'The step'} on {self.before.target}"
        page = curves_page(title, str(self), curves, self.before.limit_bytes)
        Path(path).write_text(page, encoding="utf-8")

    def __str__(self) -> str:
        lines = [f"unchanged step: {self.before}", *self.notes]
        fitting = [row for row in self.rows if row.fits]
        explained: set[Kind] = set()
        for number, row in enumerate(fitting, 1):
            kind = row.kind if row.kind in explained else f"{row.kind}: {_KINDS[row.kind]}"
            explained.add(row.kind)
            best = "(best) " if row is self.best else ""
            lines += [f"{number:>3}. {best}{row._line(kind)}", *_details(row)]
        if not fitting and not self.before.fits:
            lines.append(f"tried {plural(len(self.rows), 'change')}; {none_fits(self.rows)}")
        refused = [row for row in self.rows if not row.fits]
        if refused:
            lines += ["tried:", *(f"{_INDENT}{line}" for line in _refused(refused))]
        if self.untried:
            lines += ["not tried:", *(f"{_INDENT}{n}: {why}" for n, why in self.untried.items())]
        if self.error:
            lines.append(f"the search ended early: {self.error}")
        return "\n".join(lines)


def none_fits(rows: Sequence[PlanRow]) -> str:
    """That no row fits, or that none is known to, where a row has no verdict."""
    unknown = any(row.fits is None for row in rows)
    return "no change is known to fit" if unknown else "none makes the step fit"


def _details(row: PlanRow) -> list[str]:
    """What to write, where, and what it does to the values."""
    where = [f"{_INDENT}where: {', '.join(row.where)}"] if row.where else []
    write = [f"{_INDENT}write: {line}" for line in row.code.splitlines()]
    return [*write, *where, f"{_INDENT}values: {row.values}"]


def _refused(rows: Sequence[PlanRow]) -> Iterator[str]:
    """A line for each set of changes that does not fit: the edit with the lowest peak."""
    by_changes: dict[tuple[str, ...], list[PlanRow]] = {}
    for row in rows:
        by_changes.setdefault(row.changes, []).append(row)
    for changes, alike in by_changes.items():
        best = alike[0]
        what = best.edits[-1].what if best.edits else best.what
        if best.fits is None:
            verdict = f"no verdict: {best.fit.error}"
        elif best.peak_bytes is None:
            verdict = "does not fit"
        else:
            verdict = f"does not fit, {_needs(best)}"
        more = f" (the smallest of {len(alike)} tries)" if len(alike) > 1 else ""
        yield f"{' + '.join(changes)}: {what}: {verdict}{more}"


def _needs(row: PlanRow) -> str:
    """The peak of a row that does not fit, or more, where the peak alone would fit."""
    total, peak, limit = row.fit.total_bytes, row.peak_bytes or 0, row.fit.limit_bytes
    if total is None or limit is None or peak > limit:
        return f"peak {format_size(peak)}"
    return f"needs {format_size(total)} (peak {format_size(peak)})"
