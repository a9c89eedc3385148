"""The verdict on one step and one target."""

from __future__ import annotations

from dataclasses import dataclass
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
        limit_bytes: What the device offers, or the limit that was given; None where it is not known.
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
