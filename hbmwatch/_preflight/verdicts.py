"""The verdicts: on one step and one target, and on the sizes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hbmwatch._preflight.assigned import Proof
from hbmwatch._records.sizes import format_size
from hbmwatch._report.report import OomReport

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a step fits a device, by the compiler of that device.

    All sizes are per device. The verdict is on the program alone: other arrays on the device and
    fragmentation are not in it.

    Attributes:
        fits: Whether the program fits; None where that is not known (see error).
        peak_bytes: Bytes live at the program's memory peak.
        total_bytes: All that the compiler allocates for the program, without its code. It is this
            that has to fit, and it can be more than the peak.
        limit_bytes: What the device offers, or the limit that was given; None where not known.
        target: The target ("v5e:2x2").
        proof: "compiled" where the compiler came to its own end, also where that is a refusal;
            "assigned" where it was stopped at XLA's buffer assignment, which does not count the
            program's code.
        report: Peak, buffers and findings, also of what fits.
        seconds: How long it took.
        error: Why there is no verdict, or the first line of the compiler's refusal; "" otherwise.
        limit_note: What the limit rests on, where no device has confirmed it; "" otherwise.
        code_bytes: The size of the generated code; None where it is not known.
        cpu_seconds: Processor seconds of the compiler's process.
    """

    __module__ = "hbmwatch"

    fits: bool | None
    peak_bytes: int | None
    total_bytes: int | None
    limit_bytes: int | None
    target: str
    proof: Proof
    report: OomReport
    seconds: float = 0.0
    error: str = ""
    limit_note: str = ""
    code_bytes: int | None = None
    cpu_seconds: float = 0.0

    @property
    def left_bytes(self) -> int | None:
        """What is left of the limit, below 0 where it does not fit; None where it is not known."""
        if self.limit_bytes is None or self.total_bytes is None:
            return None
        return self.limit_bytes - self.total_bytes - (self.code_bytes or 0)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON-able values, under a "schema" version."""
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
        if values.get("schema") != SCHEMA:
            raise ValueError(f"no verdict of schema {SCHEMA}")
        names = {field.name for field in fields(cls)} - {"report"}
        try:
            known = {name: values[name] for name in names}
            return cls(report=OomReport.from_dict(values["report"]), **known)
        except KeyError as error:
            raise ValueError(f"a verdict without {error}") from error

    def __str__(self) -> str:
        if self.fits is None:
            return f"not known whether it fits {self.target}: {self.error}{self._figures()}"
        verdict = f"{'fits' if self.fits else 'does not fit'} {self.target}"
        if self.total_bytes is None:
            return f"{verdict}: {self.error}"
        return f"{verdict}{self._figures()}; {self._rests_on()}"

    def _figures(self) -> str:
        """What it needs and what there is."""
        if self.total_bytes is None:
            return ""
        needs = f": needs {format_size(self.total_bytes)}"
        if self.peak_bytes is not None and self.peak_bytes != self.total_bytes:
            needs += f" (peak {format_size(self.peak_bytes)})"
        if self.limit_bytes is None or self.left_bytes is None:
            return needs
        note = f" ({self.limit_note})" if self.limit_note else ""
        has = f", has {format_size(self.limit_bytes)}{note}"
        if self.left_bytes < 0:
            return f"{needs}{has}, over by {format_size(-self.left_bytes)}"
        return f"{needs}{has}, {format_size(self.left_bytes)} left"

    def _rests_on(self) -> str:
        """What the verdict rests on."""
        if self.proof == "compiled":
            return "compiled" if self.fits or not self.error else "refused by the compiler"
        uncounted = ", the code is not counted" if self.target.startswith(("v", "tpu")) else ""
        return f"by buffer assignment{uncounted}"


@dataclass(frozen=True, slots=True)
class Largest:
    """A size that fits while the next one does not.

    Not every size was tried: where XLA rematerializes, a larger one may fit again.

    Attributes:
        size: The size that fits; None: not even the smallest does.
        next_size: The next multiple, which does not fit; None where at_most fits, or the search
            ended early (see error).
        fit: The verdict on size; on the smallest where that does not fit.
        tried: Size -> verdict, in the order of the tries.
        proof: "compiled" where size was compiled to the end and the next size refused;
            "assigned" where one of both rests on the buffer assignment.
        multiple_of: What the sizes are multiples of.
        error: Why the search ended early; "" otherwise.
        seconds: How long it took.
    """

    __module__ = "hbmwatch"

    size: int | None
    next_size: int | None
    fit: Fit
    tried: Mapping[int, Fit] = field(default_factory=dict)
    proof: Proof = "assigned"
    multiple_of: int = 1
    error: str = ""
    seconds: float = 0.0

    @property
    def monotone(self) -> bool:
        """False where a larger size that was tried fits although a smaller one does not."""
        fitting = [size for size, fit in self.tried.items() if fit.fits]
        refused = [size for size, fit in self.tried.items() if fit.fits is False]
        return not fitting or not refused or max(fitting) < min(refused)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all compiles."""
        return sum(fit.cpu_seconds for fit in self.tried.values())

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON-able values, under a "schema" version, without the tries' reports."""
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

    def _answer(self) -> str:
        target = self.fit.target
        if self.size is None:
            smallest = min(self.tried, default=self.multiple_of)
            return f"Not even {smallest} fits {target}: {self.fit}."
        step = f" multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        if self.next_size is None:
            return f"{self.size} fits {target}, the largest that was tried."
        return f"{self.size} is the largest{step} found for {target}."

    def _proved(self) -> list[str]:
        """What the two ends of the search rest on."""
        sentences = []
        if self.size is not None:
            left = self.fit.left_bytes
            room = "" if left is None else f", {format_size(left)} left"
            how = "compiled" if self.fit.proof == "compiled" else "by buffer assignment"
            sentences.append(f"{self.size} fits ({how}{room}).")
        over = self.tried.get(self.next_size) if self.next_size is not None else None
        if over is not None:
            left = over.left_bytes
            by = f", {format_size(-left)} over" if left is not None and left < 0 else ""
            how = "compiled" if over.proof == "compiled" else "by buffer assignment"
            sentences.append(f"{self.next_size} does not ({how}{by}).")
        return sentences

    def _sawtooth(self) -> list[str]:
        """That sizes fit again above one that does not."""
        if self.monotone:
            return []
        refused = min(size for size, fit in self.tried.items() if fit.fits is False)
        fitting = max(size for size, fit in self.tried.items() if fit.fits)
        return [
            f"Memory does not grow evenly with the size: {refused} does not fit although "
            f"{fitting} does."
        ]
