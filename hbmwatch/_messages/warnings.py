"""What XLA's warnings about memory add to an OOM: what it planned, and with which limit."""

from __future__ import annotations

import re

from hbmwatch._records.sizes import COUNT, SIZE, format_size, read_size

_REMATERIALIZED = re.compile(
    rf"Can't reduce memory use below {SIZE} \((?P<limit>{COUNT}) bytes\) by rematerialization; "
    rf"only reduced to {SIZE} \((?P<plan>{COUNT}) bytes\)"
)
_ARGUMENTS = re.compile(
    rf"byte size of input/output arguments \((?P<plan>{COUNT})\) exceeds the base limit "
    rf"\((?P<limit>{COUNT})\)"
)


def compiler_warnings(flat_text: str) -> list[str]:
    """A sentence for each kind of warning in a text; the last of each kind counts.

    Args:
        flat_text: A text in which each run of white space is one space.
    """
    sentences = []
    arguments = _figures(_ARGUMENTS, flat_text)
    if arguments is not None:
        plan, limit = arguments
        sentences.append(
            f"XLA warned that the arguments and outputs alone take {format_size(plan)}, "
            f"{format_size(plan - limit)} above the {format_size(limit)} that it plans with. "
            "Rematerialization works on temporaries only: shard or donate the arguments, or make "
            "them smaller."
        )
    rematerialized = _figures(_REMATERIALIZED, flat_text)
    if rematerialized is not None:
        plan, limit = rematerialized
        sentences.append(
            f"XLA warned that rematerialization stopped at {format_size(plan)}, "
            f"{format_size(plan - limit)} above the {format_size(limit)} that it plans with: it "
            "found nothing more to recompute. What is left has to become smaller in the program."
        )
    return sentences


def _figures(warning: re.Pattern[str], text: str) -> tuple[int, int] | None:
    """The plan and the limit, in bytes, of the last warning of a kind; None without one."""
    matches = list(warning.finditer(text))
    if not matches:
        return None
    plan, limit = (read_size(matches[-1][name]) for name in ("plan", "limit"))
    return None if plan is None or limit is None else (plan.size_bytes, limit.size_bytes)
