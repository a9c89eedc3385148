"""The verdicts: whether a step fits a target, and the largest size that fits."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hbmwatch._preflight.assigned import Proof
from hbmwatch._records.sizes import format_size
from hbmwatch._report.json import rebuild_record
from hbmwatch._report.report import OomReport

SCHEMA = 1
LIMIT_UNKNOWN = "the memory limit of {} is unknown; pass limit_bytes"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a step fits a device, according to the compiler of that device.

    All sizes are per device. The verdict is about the program alone: it does not count other arrays
    on the device, or fragmentation.

    It is true (`if fits(...):`) if the program fits, and false if it does not or if that is
    unknown.

    Attributes:
        fits: Whether the program fits; None if unknown (see error).
        peak_bytes: Bytes live at the program's memory peak.
        total_bytes: All that the compiler allocates for the program, without its code. This has to
            fit, and it can be more than the peak.
        limit_bytes: What the device has for a program, or the limit that was given; None if
            unknown.
        target: The target ("v5e:2x2").
        proof: "compiled" if the compiler finished, by accepting or by rejecting the program;
            "assigned" if it was stopped at XLA's buffer assignment, which does not count the
            program's code.
        report: Peak, buffers and findings, also for a program that fits.
        seconds: How long it took.
        error: Why there is no verdict, or the first line of the compiler's error; "" otherwise.
        limit_note: Where the limit comes from, if no device has confirmed it; "" otherwise.
        code_bytes: The size of the generated code; None if unknown.
        cpu_seconds: Processor seconds of the compiler's process.
    """

    __module__ = "hbmwatch"

    fits: bool | None
    peak_bytes: int | None
    total_bytes: int | None
    limit_bytes: int | None
    target: str
    proof: Proof
    report: OomReport = field(repr=False)
    seconds: float = 0.0
    error: str = ""
    limit_note: str = ""
    code_bytes: int | None = None
    cpu_seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.fits is True

    @property
    def is_only_the_limit_unknown(self) -> bool:
        """Whether the compiler accepted the program, and only the device's limit is missing."""
        return self.fits is None and self.error == LIMIT_UNKNOWN.format(self.target)

    @property
    def left_bytes(self) -> int | None:
        """What is left of the limit, negative if the program does not fit; None if unknown."""
        if self.limit_bytes is None or self.total_bytes is None:
            return None
        return self.limit_bytes - self.total_bytes - (self.code_bytes or 0)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON-able values, with a "schema" version."""
        return {
            "schema": SCHEMA,
            "fits": self.fits,
            "peak_bytes": self.peak_bytes,
            "total_bytes": self.total_bytes,
            "limit_bytes": self.limit_bytes,
            "left_bytes": self.left_bytes,
            "limit_note": self.limit_note,
            "code_bytes": self.code_bytes,
            "target": self.target,
            "proof": self.proof,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "error": self.error,
            "report": self.report.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fit:
        """The verdict that to_dict() gave, also after a round trip through JSON.

        Raises:
            ValueError: Another schema version, or values that are no verdict.
        """
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise ValueError(f"no verdict of schema {SCHEMA}")
        names, readers = {"Proof": Proof, "OomReport": OomReport}, {"report": OomReport.from_dict}
        return rebuild_record(cls, values, "the verdict", names, readers)

    def __str__(self) -> str:
        if self.fits is None:
            figures = self._figures().replace(": ", "; ", 1)
            return f"no verdict for {self.target}: {self.error}{figures}"
        verdict = f"{'fits' if self.fits else 'does not fit'} {self.target}"
        if self.total_bytes is None:
            why = f": {self.error}" if self.error else "; how much it needs is not known"
            return f"{verdict}{why}; {self._rests_on()}"
        return f"{verdict}{self._figures()}; {self._rests_on()}"

    def _repr_html_(self) -> str:
        """How a notebook shows it: the verdict, and the page of its report."""
        return f"<p>{html.escape(str(self))}</p>{self.report._repr_html_()}"

    def _figures(self) -> str:
        """What the program needs, and what the device has."""
        if self.total_bytes is None:
            return ""
        needs = f": needs {format_size(self.total_bytes)}"
        if self.peak_bytes is not None and self.peak_bytes != self.total_bytes:
            needs += f" (peak {format_size(self.peak_bytes)})"
        if self.limit_bytes is None or self.left_bytes is None:
            return needs
        note = f" ({self.limit_note})" if self.limit_note else ""
        has = f"; {format_size(self.limit_bytes)} available{note}"
        if self.left_bytes < 0:
            return f"{needs}{has}; {format_size(-self.left_bytes)} over the limit"
        return f"{needs}{has}; {format_size(self.left_bytes)} left"

    def _rests_on(self) -> str:
        """How the verdict was reached, and what it does not count."""
        is_uncounted = self.proof != "compiled" and self.target.startswith(("v", "tpu"))
        return self._proof() + ("; the size of the code is not included" if is_uncounted else "")

    def _proof(self) -> str:
        """How the verdict was reached."""
        if self.proof == "compiled":
            return "compiled" if self.fits or not self.error else "rejected by the compiler"
        return "from the buffer assignment"


@dataclass(frozen=True, slots=True)
class Largest:
    """A size that fits, while the next size does not.

    Not every size was tried: where XLA rematerializes, a larger size may fit again. It is true if a
    size that fits was found.

    Attributes:
        size: The size that fits; None if even the smallest size does not, or if the search
            ended before a size was found (see error).
        next_size: The next multiple, which does not fit; None if at_most fits, or if the search
            ended early (see error).
        fit: The verdict on size; if size is None, on the smallest size that was tried, or
            a verdict with fits=None if there is no other.
        tried: Size -> verdict, in the order in which they were tried.
        proof: "compiled" if size and the next size were both compiled to the end; "assigned" if the
            verdict on at least one of them is from the buffer assignment.
        multiple_of: The sizes are multiples of this.
        error: Why the search ended early; "" otherwise.
        seconds: How long it took.
    """

    __module__ = "hbmwatch"

    size: int | None
    next_size: int | None
    fit: Fit
    tried: Mapping[int, Fit] = field(default_factory=dict, repr=False)
    proof: Proof = "assigned"
    multiple_of: int = 1
    error: str = ""
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.size is not None

    @property
    def monotone(self) -> bool:
        """False if a larger size that was tried fits although a smaller one does not."""
        fitting = [size for size, fit in self.tried.items() if fit.fits]
        refused = [size for size, fit in self.tried.items() if fit.fits is False]
        return not fitting or not refused or max(fitting) < min(refused)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all compiles."""
        return sum(fit.cpu_seconds for fit in self.tried.values())

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON-able values, with a "schema" version, and no reports in `tried`."""
        tried = {str(size): fit.to_dict() for size, fit in self.tried.items()}
        for one in tried.values():
            del one["report"]
        return {
            "schema": SCHEMA,
            "size": self.size,
            "next_size": self.next_size,
            "multiple_of": self.multiple_of,
            "proof": self.proof,
            "monotone": self.monotone,
            "error": self.error,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "fit": self.fit.to_dict(),
            "tried": tried,
        }

    def __str__(self) -> str:
        sentences = [self._answer(), *self._proved(), *self._sawtooth()]
        if self.error:
            sentences.append(f"The search ended early: {self.error}.")
        return " ".join(sentences)

    def _repr_html_(self) -> str:
        """How a notebook shows it: the answer, and the page of the report on `fit`."""
        return f"<p>{html.escape(str(self))}</p>{self.fit.report._repr_html_()}"

    def _answer(self) -> str:
        target = self.fit.target
        if self.size is None and self.error:
            return f"No size that fits {target} was found."
        if self.size is None:
            smallest = min(self.tried, default=self.multiple_of)
            return f"Even {smallest} {self.fit}."
        step = f"multiple of {self.multiple_of}" if self.multiple_of > 1 else "size"
        if self.next_size is None and self.error:
            return f"{self.size} is the largest {step} found so far that fits {target}."
        if self.next_size is None:
            shown = f"{self.size} is the largest {step} that was tried"
            return f"{shown}, and it fits {target} {self._how()}."
        return f"{self.size} is the largest {step} found that fits {target}."

    def _proved(self) -> list[str]:
        """How both ends of the search were checked."""
        if self.size is None:  # the answer has the verdict
            return []
        said = self.next_size is None and not self.error
        sentences = [] if said else [f"{self.size} fits {self._how()}."]
        over = self.tried.get(self.next_size) if self.next_size is not None else None
        if over is not None:
            left = over.left_bytes
            by = f", {format_size(-left)} over" if left is not None and left < 0 else ""
            how = over._proof()
            sentences.append(f"{self.next_size} does not ({how}{by}).")
        return sentences

    def _how(self) -> str:
        """How it is known that the size fits, and what is left."""
        left = self.fit.left_bytes
        room = "" if left is None else f", {format_size(left)} left"
        return f"({self.fit._proof()}{room})"

    def _sawtooth(self) -> list[str]:
        """A warning where a larger size fits although a smaller one does not."""
        if self.monotone:
            return []
        refused = min(size for size, fit in self.tried.items() if fit.fits is False)
        fitting = max(size for size, fit in self.tried.items() if fit.fits)
        return [
            f"Memory does not grow evenly with the size: {refused} does not fit, although the "
            f"larger size {fitting} fits."
        ]
