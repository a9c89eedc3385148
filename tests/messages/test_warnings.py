"""XLA's warnings about memory, in the text of an OOM."""

from __future__ import annotations

import pytest

from hbmwatch._messages.notes import message_notes
from hbmwatch._messages.parse import parse_oom
from hbmwatch._messages.warnings import compiler_warnings

REMATERIALIZED = (
    "W hlo_rematerialization.cc:3282] Can't reduce memory use below 193.77GiB (208055883007 "
    "bytes) by rematerialization; only reduced to 350.36GiB (376197049916 bytes), down from "
    "350.79GiB (376661000000 bytes) originally"
)
ARGUMENTS = (
    "The byte size of input/output arguments (34359738368) exceeds the base limit (17179869184). "
    "This indicates an error in the calculation!"
)
TOLD = {
    REMATERIALIZED: "XLA warned that rematerialization stopped at 350.36 GiB, 156.59 GiB above the "
    "193.77 GiB that it plans with: it found nothing more to recompute. What is left has to become "
    "smaller in the program.",
    ARGUMENTS: "XLA warned that the arguments and outputs alone take 32.00 GiB, 16.00 GiB above "
    "the 16.00 GiB that it plans with. Rematerialization works on temporaries only: shard or "
    "donate the arguments, or make them smaller.",
}
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes."


@pytest.mark.parametrize("warning", TOLD, ids=["rematerialization", "arguments"])
def test_a_warning_becomes_figures(warning: str) -> None:
    """The plan, the limit, and which of the two is too large; also where lines are broken."""
    message = parse_oom(f"{warning.replace(' by ', chr(10) + 'by ')}\n{OOM}")

    assert compiler_warnings(warning) == [TOLD[warning]]
    assert message is not None
    assert TOLD[warning] in message_notes(message)


def test_the_last_warning_of_a_kind_counts() -> None:
    """XLA warns at each computation that it looks at."""
    text = f"{REMATERIALIZED.replace('376197049916', '476197049916')} {REMATERIALIZED} {ARGUMENTS}"

    assert compiler_warnings(text) == [TOLD[ARGUMENTS], TOLD[REMATERIALIZED]]


def test_other_texts_have_none() -> None:
    """Figures that are not numbers of bytes are no warning."""
    assert compiler_warnings("Can't reduce memory use below everything by rematerialization") == []
