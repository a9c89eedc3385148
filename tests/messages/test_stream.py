"""A log that is read in blocks gives what the whole text gives, in little memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbmwatch import OomMessage, parse_ooms
from hbmwatch._messages.log_text import collapse_whitespace, strip_log_decoration
from hbmwatch._messages.parse import locate_ooms
from hbmwatch._messages.statements import find_statements
from hbmwatch._messages.stream import find_in_log
from hbmwatch._messages.table import TRIGGERS
from tests.messages.samples import SAMPLES, sample, without_text

STEP = "2026-03-01 10:00:00.123456: I external/xla/xla/client.cc:12] step 7, memory in use 12 GiB\n"
CHUNK = "I xla/tsl/framework/bfc_allocator.cc:1066] InUse at 703b01400 of size 256 next 159\n"
ERROR = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes.\n"
LATER_LINES = {"continuation", "allocation_entry", "extra_figures"}


def blocks(text: str, size: int = 100_000) -> Iterator[bytes]:
    """A text in blocks."""
    data = text.encode()
    return (data[place : place + size] for place in range(0, len(data), size))


def located(text: str, size: int = 100_000) -> list[tuple[int, OomMessage | None]]:
    """The line and the message of each OOM of a log, without its text."""
    return [(one.line, without_text(one.message)) for one in find_in_log(blocks(text, size))]


def has_trigger(text: str) -> bool:
    """Whether a text is found in a long log."""
    return any(trigger in text.encode().replace(b"\n", b" ") for trigger in TRIGGERS)


def test_every_error_has_a_trigger() -> None:
    """All samples but those that hold only the later lines of an error."""
    without = [name for name in SAMPLES if not has_trigger(sample(name))]
    flat = {name: collapse_whitespace(strip_log_decoration(sample(name))) for name in without}
    sources = {name: {s.wording.source for s in find_statements(flat[name])} for name in without}
    assert {name: found for name, found in sources.items() if found - LATER_LINES} == {}


@pytest.mark.slow
def test_all_samples_in_one_long_log_are_found_on_their_lines() -> None:
    """Each gives the same message as alone, whatever is before and after it."""
    names = [name for name in SAMPLES if has_trigger(sample(name))]
    text, expected = STEP * 20_000, []
    for name in names:
        lines = text.count("\n")
        alone = locate_ooms(sample(name) + "\n")
        expected += [(lines + one.line, without_text(one.message)) for one in alone]
        text += f"{sample(name)}\n" + STEP * 3000
    assert located(text) == expected


# By name, as Hypothesis shows what it draws.
PIECES = {
    "some steps": STEP * 20,
    "many steps": STEP * 4000,
    "some chunks": CHUNK * 30,
    "many chunks": CHUNK * 3000,
    "a small request": ERROR.format(64),
    "a request": ERROR.format(4096),
    "figures": "Stats: \nLimit: 100\nInUse: 90\nMaxInUse: 95\n",
}


@settings(deadline=None, max_examples=15)
@given(st.lists(st.sampled_from(list(PIECES)), max_size=8), st.sampled_from((10_000, 1 << 18)))
@example(["figures", "many chunks", "a small request"], 10_000)
@example(["a small request", "figures", "many chunks"], 10_000)
@example(["figures", *["many chunks"] * 7, "a small request"], 1 << 18)
@pytest.mark.slow
def test_a_log_in_blocks_gives_what_the_text_gives(names: list[str], size: int) -> None:
    """The messages of any mixture of lines are those of parse_ooms, at the right lines."""
    text = STEP * 12_000 + "".join(PIECES[name] for name in names)
    expected = [without_text(message) for message in parse_ooms(text)]
    found = located(text, size)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if "EXHAUSTED" in line]
    assert [message for _, message in found] == expected
    # Figures that an allocator logs before an error belong to it.
    places = [min((line for line in lines if line >= first), default=0) for first, _ in found]
    assert places == lines


@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("a\n", id="plain"),
        pytest.param("a\r\n", id="Windows"),
        pytest.param("10%\r20%\r30%\n", id="progress"),
        pytest.param('{"message": "a\\nb\\r\\nc"}\n', id="JSON"),
        pytest.param("a<br>b&gt;\n", id="HTML"),
        pytest.param("[rank0]: \x1b[31ma\x1b[0m\n", id="prefix"),
        pytest.param("│ a │\n", id="box"),
        pytest.param("a" * 1000 + "\n", id="long"),
    ],
)
def test_the_line_is_that_of_the_file(line: str, length: int) -> None:
    """Line breaks that are escaped, or that only a terminal makes, are not counted."""
    before = line * length
    text = before + ERROR.format(64) + line + ERROR.format(32)
    number = before.count("\n")
    assert [line for line, _ in located(text)] == [number + 1, number + 3]


@pytest.mark.slow
def test_a_log_without_end_takes_little_memory() -> None:
    """Neither its length nor the number of its errors counts, nor a list of chunks."""

    def endless() -> Iterator[bytes]:
        for number in range(30):
            yield (STEP * 2000).encode()
            yield (CHUNK * 1000).encode()
            yield ERROR.format(number + 1).encode()

    tracemalloc.start()
    count = sum(1 for _ in find_in_log(endless()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30
    assert peak < 30 * 2**20


@pytest.mark.slow
def test_a_message_that_is_too_long_to_keep_is_read_in_parts() -> None:
    """Megabytes of lines that may be of an error; each error is found once."""
    line = "RESOURCE_EXHAUSTED: quota of something else\n"
    text = line * 60_000 + ERROR.format(64) + line * 60_000 + ERROR.format(32) + line
    assert [m and m.requested_bytes for _, m in located(text, 1 << 18)] == [64, 32]


def processor_seconds(line: str, length: int) -> float:
    """The processor time of reading a log that repeats one line."""
    block = (line * (2**18 // len(line))).encode()
    start = time.process_time()
    for _ in find_in_log(block for _ in range(length >> 18)):
        pass
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [STEP, CHUNK, ERROR.format(64) + STEP * 20, "RESOURCE_EXHAUSTED: quota\n"]
)
def test_the_time_grows_with_the_log(line: str) -> None:
    """Four times the log takes less than eight times the time."""
    small, large = (processor_seconds(line, size << 20) for size in (2, 8))
    assert large < 8 * max(small, 0.01)
