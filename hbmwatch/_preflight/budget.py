"""A step's peak against a stored one: by how much it grew, where, and whether that is too much."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hbmwatch._preflight.assigned import Proof
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.sizes import format_change, format_size, read_size
from hbmwatch._report.diff import changes

SCHEMA = 1
_SHOWN = 2
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
# Versions that decide what the compiler makes of a step.
_DECISIVE = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much more a step may take.

    Attributes:
        share: As a share of what it took.
        size_bytes: Or in bytes; the other one is 0.
    """

    share: float = 0.0
    size_bytes: int = 0

    @classmethod
    def read(cls, text: str) -> Tolerance:
        """ "2%" or "64 MiB".

        Raises:
            ValueError: It is neither.
        """
        if match := _PERCENT.fullmatch(text.strip()):
            return cls(share=float(match[1]) / 100)
        size = read_size(text)
        if size is None or size.size_bytes < 0:
            raise ValueError(f"{text!r} is neither a share (2%) nor a size (64 MiB)")
        return cls(size_bytes=size.size_bytes)

    def allows(self, before: int, after: int) -> bool:
        """Whether a peak may have grown from one to the other."""
        return after - before <= before * self.share + self.size_bytes


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A step that was measured, beside what is stored of it.

    Attributes:
        name: The step, as the baseline names it.
        after: The verdict now.
        before: The stored verdict; None where the step is new.
    """

    name: str
    after: Fit
    before: Fit | None = None

    @property
    def delta_bytes(self) -> int | None:
        """By how much the peak grew; None where one of both is not known."""
        if self.before is None or self.before.peak_bytes is None or self.after.peak_bytes is None:
            return None
        return self.after.peak_bytes - self.before.peak_bytes

    @property
    def new_versions(self) -> Mapping[str, tuple[str, str]]:
        """The versions of the compiler that changed: package -> (before, after)."""
        if self.before is None:
            return {}
        old, new = self.before.report.versions, self.after.report.versions
        both = {name: (old.get(name, "none"), new.get(name, "none")) for name in _DECISIVE}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    def is_over(self, tolerance: Tolerance | None) -> bool:
        """Whether the step does not fit, or grew by more than it may.

        What another version of the compiler makes of the same step is no regression.
        """
        if not self.after.fits:
            return True
        if tolerance is None or self.before is None or self.new_versions:
            return False
        before, after = self.before.peak_bytes, self.after.peak_bytes
        return before is not None and after is not None and not tolerance.allows(before, after)

    def __str__(self) -> str:
        after = self.after
        if self.before is None or self.delta_bytes is None:
            return f"{self.name} is new: {after}"
        head = f"{self.name} on {after.target}"
        old, new = self.before.peak_bytes or 0, after.peak_bytes or 0
        line = f"{head}: {format_size(old)} -> {format_size(new)} at the peak"
        if self.delta_bytes:
            where = "".join(f", {text}" for text in self._grown())
            line += f", {format_change(self.delta_bytes)}{';' if where else ''}{where[1:]}"
        else:
            line = f"{head}: {format_size(new)} at the peak, as before"
        if self.new_versions:
            changed = ", ".join(
                f"{name} {before} -> {after}" for name, (before, after) in self.new_versions.items()
            )
            line += f". Not a regression: the versions changed ({changed})"
        return line if after.fits else f"{line}. {str(after)[0].upper()}{str(after)[1:]}"

    def _grown(self) -> list[str]:
        """The lines of code whose buffers grew most."""
        before = self.before.report.summary if self.before is not None else None
        after = self.after.report.summary
        if before is None or after is None:
            return []
        found = [one for one in changes(before, after) if one.source and one.delta_bytes > 0]
        return [f"{format_change(one.delta_bytes)} at {one.source}" for one in found[:_SHOWN]]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-able values."""
        return {
            "name": self.name,
            "target": self.after.target,
            "fits": self.after.fits,
            "peak_bytes_before": None if self.before is None else self.before.peak_bytes,
            "peak_bytes": self.after.peak_bytes,
            "delta_bytes": self.delta_bytes,
            "new_versions": {name: list(pair) for name, pair in self.new_versions.items()},
            "text": str(self),
        }


# --- the baseline ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A step in a baseline: how it is measured, and what it took.

    Attributes:
        step: "pkg.model:step".
        args: "pkg.model:args_of"; "" where the step takes none.
        size: What args_of is called with; None: nothing.
        on: The target; "" is the backend at hand.
        proof: What the verdict rests on.
        fit: The verdict.
    """

    step: str
    args: str
    size: int | None
    on: str
    proof: Proof
    fit: Fit

    @property
    def key(self) -> tuple[str, str, int | None, str]:
        """What tells steps apart."""
        return self.step, self.args, self.size, self.on

    @property
    def name(self) -> str:
        """ "train_step", or "train_step(16)"."""
        name = self.step.rpartition(":")[2]
        return name if self.size is None else f"{name}({self.size})"


def load_baseline(path: Path) -> list[Entry]:
    """The steps in a baseline; none where there is no file.

    Raises:
        ValueError: The file is no baseline.
        OSError: It cannot be read.
    """
    if not path.exists():
        return []
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"no baseline of schema {SCHEMA}")
    try:
        return [Entry(**{**one, "fit": Fit.from_dict(one["fit"])}) for one in values["steps"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a baseline with a damaged step: {error}") from error


def save_baseline(path: Path, entries: list[Entry]) -> None:
    """Write a baseline.

    Raises:
        OSError: It cannot be written.
    """
    steps = [
        {
            "step": one.step,
            "args": one.args,
            "size": one.size,
            "on": one.on,
            "proof": one.proof,
            "fit": one.fit.to_dict(),
        }
        for one in entries
    ]
    text = json.dumps({"schema": SCHEMA, "steps": steps}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
