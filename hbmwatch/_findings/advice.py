"""What all findings of one slug share: name, weight, and the fixed parts of their text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.candidate import Candidate
from hbmwatch._records.report import Certainty, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What all findings of one slug share.

    Attributes:
        slug: The stable name of the finding.
        prior_weight: How likely it is the root cause where its bytes are at the peak, relative to
            the others. Set by hand, so that the programs of tests/oom_programs show their cause
            first.
        link: Where to read on.
        will_not_help: What people usually try here without effect; "" where there is nothing.
        without_batch: The same for a program that has no batch to make smaller; None: it does not
            name one.
        change: The change with which `verify` can try it; "" if there is none.
        least_share_of_peak: The bytes over the limit count as at least this share of the peak;
            None: rank.LEAST_SHARE_OF_PEAK.
        weigh: Gives the weight where it depends on the program; None: it is prior_weight.
    """

    slug: str
    prior_weight: float
    link: str
    will_not_help: str = ""
    without_batch: str | None = None
    change: str = ""
    least_share_of_peak: float | None = None
    weigh: Callable[[ProgramFacts, Finding], float] | None = None

    def finding(
        self,
        title: str,
        evidence: str,
        remedy: str,
        saves_bytes: int | None,
        certainty: Certainty = "derived",
        will_not_help: str | None = None,
        change: str | None = None,
        buffers: Iterable[LiveBuffer | str] = (),
    ) -> Finding:
        """A finding with this advice; `will_not_help` and `change` replace the advice's own."""
        return Finding(
            slug=self.slug,
            title=title,
            evidence=evidence,
            remedy=remedy,
            saves_bytes=saves_bytes,
            certainty=certainty,
            link=self.link,
            will_not_help=self.will_not_help if will_not_help is None else will_not_help,
            change=self.change if change is None else change,
            buffers=tuple(b if isinstance(b, str) else b.op.instruction for b in buffers),
        )


def all_bytes(buffers: Sequence[LiveBuffer]) -> int:
    """The bytes of all buffers."""
    return sum(live.size_bytes for live in buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAdvice(Advice):
    """What all findings on large buffers of one slug share.

    Attributes:
        title: The title; "{at}" stands for the source line.
        remedy: What to change.
        remedy_for: Gives the remedy where it depends on the buffers; None: it is remedy.
        freed_bytes: The bytes that the remedy frees, at most.
        freed_for: Gives them where they depend on more than the buffers; None: it is freed_bytes.
        names_argument: Whether the evidence names the argument that the buffer is a copy of.
        even_if_padded: Whether it also applies to a buffer that is mostly padding.
        reads_origin: Whether its rule reads the origin of the buffer.
        by_blocks: Whether the remedy goes over blocks, whose values a backward pass would keep.
        of_results: The remedy where most of the buffers are results of the program, which the usual
            one leaves as large; "": it makes results smaller, too.
        line_for: Gives the line of the title as " at train.py:7"; None: that of most bytes.
        counts_steps: Whether the length of a loop buffer is the number of steps of the loop.
        detail: What the evidence says of the largest buffer in addition, as a clause; None for
            nothing.
    """

    title: str
    remedy: str
    freed_bytes: Callable[[Sequence[LiveBuffer]], int] = all_bytes
    freed_for: Callable[[Sequence[Candidate]], int] | None = None
    names_argument: bool = False
    even_if_padded: bool = False
    reads_origin: bool = True
    remedy_for: Callable[[Sequence[Candidate]], str] | None = None
    by_blocks: bool = False
    of_results: str = ""
    line_for: Callable[[Sequence[Candidate]], str] | None = None
    counts_steps: bool = True
    detail: Callable[[LiveBuffer, ProgramFacts], str] | None = None
