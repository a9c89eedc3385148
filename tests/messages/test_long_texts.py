"""Long texts: the time grows with the text, and an OOM at the end is found."""

from __future__ import annotations

import time

import pytest

from hbmwatch import OomMessage, parse_oom

SMALL, LARGE = 125_000, 1_000_000
SENTENCE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 2.00G of 1.00G hbm."
LOG = "2026-03-01 10:00:00.123456: I external/xla/xla/client.cc:12] step 7, memory in use 12 GiB\n"
LONG = {
    "a log without an OOM": LOG,
    "a log of vLLM": "(EngineCore pid=106339) ERROR 06-03 07:41:11 [core.py:1184]      return x\n",
    "near misses": "Ran out of memory in\n",
    "near misses of a space": "Ran out of memory in memory space \n",
    "near misses of an allocation": "Allocation (size=1) would exceed \n",
    "near misses of a request": "Failed to allocate 5 x\n",
    "warnings": "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB with freed_by_"
    "count=0. The caller indicates that this is not a failure.\n",
    "open brackets": "[",
    "open brackets on lines": "[core\n",
    "open payloads": "[a='",
    "open quotes": "Error loading program '",
    "open shapes": "#allocation1 [shape = '",
    "backslashes": "\\",
    "escaped breaks": "\\n",
    "boxes": "│ memory ",
    "half a box": "│ ",
    "escaped letters": "\\u003e memory",
    "line breaks": "\n",
    "spaces": " ",
    "one letter": "a",
    "one hint": "hbm ",
    "hints in open brackets": "[memory\n",
    "digits": "1",
    "open code": "`hbm ",
    "source": '"\n "memory ',
    "source that ends": 'memory" \n',
    "comments": "# memory\n",
    "capacities": "Exceeded hbm capacity by ",
    "references": "&#1; memory",
    "syslog": "Mar  1 10:00:00 host memory: x\n",
}


def long_text(name: str, length: int) -> str:
    """A text of about this length that repeats one piece."""
    return LONG[name] * (length // len(LONG[name]))


def processor_seconds(text: str) -> float:
    """The least processor time of two readings of a text."""
    times = []
    for _ in range(2):
        start = time.process_time()
        parse_oom(text)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_the_time_grows_with_the_text(name: str) -> None:
    """Eight times the text takes less than 32 times the time: the parser never goes back."""
    small, large = long_text(name, SMALL), long_text(name, LARGE)
    assert (parse_oom(small), parse_oom(large)) == (None, None)
    assert processor_seconds(large) < 32 * max(processor_seconds(small), 0.001)


@pytest.mark.parametrize("name", LONG)
def test_an_oom_at_the_end_of_a_long_text_is_found(name: str) -> None:
    """Text before an OOM does not change its figures."""
    message = parse_oom(long_text(name, LARGE) + "\n" + SENTENCE)
    assert isinstance(message, OomMessage)
    assert (message.used_bytes, message.limit_bytes) == (2 * 2**30, 2**30)
