"""HbmOomError, which a caller can catch, and how an OOM is recognized among other errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jax.errors import JaxRuntimeError

from hbmwatch._explain.problems import described, text_of
from hbmwatch._jax.errors import is_mosaic_error
from hbmwatch._report.text import headline

# Wordings and records are two thirds of what a watch would load; only a failure needs them.
if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage
    from hbmwatch._records.peak import PeakSummary
    from hbmwatch._report.report import OomReport

RESOURCE_EXHAUSTED = 8  # absl::StatusCode::kResourceExhausted

# jax < 0.9.2 has no error_code: there a second argument would end up in the text.
_HAS_CODE = hasattr(JaxRuntimeError, "error_code")


class ReportNote(str):
    """The report as an exception note (PEP 678), which also holds the report as data.

    Attributes:
        report: The report that the text renders.
        top: How many rows of buffers the text has at most.
    """

    report: OomReport
    top: int

    def __new__(cls, report: OomReport, top: int = 10) -> ReportNote:
        note = super().__new__(cls, report.text(top=top))
        note.report = report
        note.top = top
        return note

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report, self.top)


class HbmOomError(JaxRuntimeError):  # type: ignore[misc]  # jaxlib's class has no types
    """A JAX program ran out of device memory; `report` says what filled the memory.

    It is a jax.errors.JaxRuntimeError (formerly called XlaRuntimeError), so existing handlers keep
    working. Its message starts with the original error text and ends in one line that says how much
    memory was needed and how much was available. The report is attached as an exception note, which
    tracebacks show. The error can be pickled, and it holds no array.

    Attributes:
        report: The whole report.
    """

    __module__ = "hbmwatch"

    report: OomReport

    def __init__(self, text: str, report: OomReport) -> None:
        full = f"{text.rstrip()}\n{headline(report)}"
        whole = full.encode("utf-8", "replace").decode()  # jaxlib's class takes no lone surrogate
        super().__init__(whole, *([RESOURCE_EXHAUSTED] if _HAS_CODE else []))
        self._text = text
        self.report = report

    @property
    def summary(self) -> PeakSummary | None:
        """The memory peak of the failing program; None where it is unavailable."""
        return self.report.summary

    @property
    def message(self) -> OomMessage:
        """What the text of the error says."""
        return self.report.message

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        return self.report._repr_html_()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How a terminal's IPython shows it."""
        printer.text(f"{type(self).__name__}: {self}\n{self.report}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._text, self.report), {"__notes__": list(notes_of(self))}


def report_of(error: BaseException) -> OomReport | None:
    """The report that a watch has already attached to this error or to one of its causes."""
    for link in _causes(error):
        if isinstance(link, HbmOomError):
            return link.report
        for note in notes_of(link):
            if isinstance(note, ReportNote):
                return note.report
    return None


def find_oom(error: BaseException) -> tuple[BaseException, OomMessage] | None:
    """The device-memory OOM that this error is, or was raised from, and what its text says.

    Only the explicit chain of causes counts. An error that is raised while an OOM is handled has
    the OOM as its context, but is another error.
    """
    from hbmwatch._messages.parse import parse_oom

    for link in _causes(error):
        text = text_of(link)
        # XLA quotes what a callback of the user's raised, whatever that says.
        quoted = "error calling callback" in text and "RESOURCE_EXHAUSTED" not in text
        message = parse_oom(text) if _is_from_jax(link) and not quoted else None
        if message is not None:
            return link, message
    return None


def may_be_oom(error: Exception) -> bool:
    """Whether it is or may be an OOM, or there is not even enough memory left to find out."""
    try:
        return find_oom(error) is not None or bool(possibility(error))
    except Exception:
        return True


def possibility(error: BaseException) -> str:
    """A note on an error of JAX that may be an OOM although it does not say so; "" for others."""
    from hbmwatch._messages.possible import possible_oom

    note = possible_oom(text_of(error)) if belongs_to_jax(error) else ""
    return f"hbmwatch: {note}" if note else ""


def belongs_to_jax(error: BaseException) -> bool:
    """Whether JAX itself reports OOMs in the error's class.

    HbmOomError replaces these; an exception of any other class stays as it is.
    """
    kind = type(error)
    warm = kind is ValueError and text_of(error).startswith("RESOURCE_EXHAUSTED:")
    return kind is JaxRuntimeError or warm or is_mosaic_error(error)


def _is_from_jax(error: BaseException) -> bool:
    return belongs_to_jax(error) or isinstance(error, JaxRuntimeError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its explicit causes, and the members of groups among them; each one once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    for link in todo:  # grows meanwhile
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            todo += [link.__cause__]
            todo += link.exceptions if isinstance(link, BaseExceptionGroup) else ()


def notes_of(error: BaseException) -> tuple[Any, ...]:
    """The notes of an error (PEP 678)."""
    notes = getattr(error, "__notes__", ())
    return tuple(notes) if isinstance(notes, (list, tuple)) else ()


def bare_report(message: OomMessage, failed: Exception) -> OomReport:
    """The report where building it failed: the message, and why there is nothing else."""
    from hbmwatch._report.report import OomReport

    reason = f"could not build the report: {described(failed)}"
    return OomReport(message=message, missing=(reason,))
