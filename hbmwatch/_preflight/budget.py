"""Compares a step's peak with a stored one: how much it grew, where, and whether it may."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hbmwatch._preflight.assigned import Proof
from hbmwatch._preflight.verdicts import Fit
from hbmwatch._records.sizes import format_change, format_size, given_size
from hbmwatch._report.diff import changes
from hbmwatch._report.json import rebuild_record

SCHEMA = 1
_SHOWN = 2
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
Key = tuple[str, str, int | None, str]  # the step, its arguments, their size, the target
# The versions that decide how a step is compiled.
_DECISIVE = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much a step's peak may grow.

    Attributes:
        share: As a share of the stored peak; 0.0 if size_bytes is set.
        size_bytes: In bytes; 0 if share is set.
    """

    share: float = 0.0
    size_bytes: int = 0

    @classmethod
    def read(cls, text: str) -> Tolerance:
        """The tolerance in a text: "2%" or "64MiB".

        Raises:
            ValueError: The text is neither.
        """
        if match := _PERCENT.fullmatch(text.strip()):
            return cls(share=float(match[1]) / 100)
        try:
            return cls(size_bytes=given_size(text, "64MiB"))
        except ValueError as error:
            raise ValueError(f"{error}, or a share such as 2%") from None

    def allows(self, before: int, after: int) -> bool:
        """Whether a peak may grow from `before` to `after`."""
        return after - before <= before * self.share + self.size_bytes


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A measured step, and its stored verdict.

    Attributes:
        name: The step, as the baseline names it.
        after: The verdict now.
        before: The stored verdict; None if the step is new.
    """

    name: str
    after: Fit
    before: Fit | None = None

    @property
    def delta_bytes(self) -> int | None:
        """By how much the peak grew; None if one of both peaks is unknown."""
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
        """Whether the step does not fit, has no verdict, or grew by more than the tolerance.

        A change of the compiler's version can change the peak of an unchanged step, so growth does
        not count then. Where no limit is known, as for a CPU, only growth counts.
        """
        if not self.after.fits and not self.after.is_only_the_limit_unknown:
            return True
        if tolerance is None or self.before is None or self.new_versions:
            return False
        before, after = self.before.peak_bytes, self.after.peak_bytes
        return before is not None and after is not None and not tolerance.allows(before, after)

    def __str__(self) -> str:
        after = self.after
        if self.before is None:
            verdict = self._without_limit() if after.is_only_the_limit_unknown else str(after)
            return f"{self.name} is new: {verdict}"
        if self.delta_bytes is None:
            return f"{self.name} cannot be compared with the baseline: {after}"
        head = f"{self.name} on {after.target}"
        old, new = self.before.peak_bytes or 0, after.peak_bytes or 0
        line = f"{head}: peak {format_size(old)} -> {format_size(new)}"
        if self.delta_bytes:
            where = "".join(f", {text}" for text in self._grown())
            line += f" ({format_change(self.delta_bytes)}){':' if where else ''}{where[1:]}"
        else:
            line = f"{head}: peak {format_size(new)}, unchanged"
        if self.new_versions:
            changed = ", ".join(
                f"{name} {before} -> {after}" for name, (before, after) in self.new_versions.items()
            )
            line += f". Growth does not count, because versions changed: {changed}"
        if after.fits or after.is_only_the_limit_unknown:
            return line
        return f"{line}. {str(after)[0].upper()}{str(after)[1:]}"

    def _without_limit(self) -> str:
        """The verdict on a step for a device whose limit is not known: its peak alone."""
        peak, target = format_size(self.after.peak_bytes or 0), self.after.target
        return (
            f"peak {peak} on {target}; the memory limit of {target} is unknown, only growth counts"
        )

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
    """A step in a baseline: how it is measured, and its verdict.

    Attributes:
        step: "pkg.model:step".
        args: "pkg.model:args_of"; "" if the step has no arguments.
        size: What args_of is called with; None: it is called without arguments.
        on: The target; "": JAX's default devices.
        proof: How the verdict is reached.
        fit: The verdict.
    """

    step: str
    args: str
    size: int | None
    on: str
    proof: Proof
    fit: Fit

    @property
    def key(self) -> Key:
        """What identifies a step in a baseline."""
        return self.step, self.args, self.size, self.on


def distinct_names(keys: Sequence[Key]) -> dict[Key, str]:
    """ "train_step" or "train_step(16)"; where two steps share it, all that tells them apart."""
    short = {key: _named(key[0].rpartition(":")[2], key[2]) for key in keys}
    shared = Counter((name, key[3]) for key, name in short.items())
    return {
        key: _named(" with ".join(filter(None, key[:2])), key[2])
        if shared[name, key[3]] > 1
        else name
        for key, name in short.items()
    }


def _named(name: str, size: int | None) -> str:
    return name if size is None else f"{name}({size})"


def load_baseline(path: Path) -> list[Entry]:
    """The steps in a baseline; none if there is no file.

    Raises:
        ValueError: The file is not a baseline.
        OSError: It cannot be read.
    """
    if not path.exists():
        return []
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"not a baseline with schema version {SCHEMA}")
    steps = values.get("steps")
    if not isinstance(steps, list):
        raise ValueError('the baseline has no list of "steps"')
    names, readers = {"Proof": Proof, "Fit": Fit}, {"fit": Fit.from_dict}
    return [
        rebuild_record(Entry, one, f"step {number}", names, readers)
        for number, one in enumerate(steps, start=1)
    ]


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
