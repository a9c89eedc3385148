"""Long texts: the time grows with the text, and an OOM at the end is found."""

from __future__ import annotations

import time

import pytest

from hbmwatch import OomMessage, parse_oom, parse_ooms

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
    "near misses of a program": "RESOURCE_EXHAUSTED: Error loading progress ",
    "near misses of what is free": "There are 1G free, 2G reserved, ",
    "near misses of banks": "Not enough space to allocate 5 B L2 buffer ",
    "near misses of statistics": "OOM Summary: Reason: a . ",
    "near misses of ROCm": "HSA_STATUS_ERROR_OUT_OF_RESOURCES ",
    "near misses of an operation": "operation gpuGet() failed: out of memories ",
    "allocations after an error": "Cuda failure 700 'x' Failed to CUDA calloc 8 bytes\n",
    "marks": "Attempting to reserve 1.00G - - - ",
    "bullets": "- memory ",
    "bullets on lines": "- `memory\n",
    "code on lines": "`memory`   \n",
    "fences": "```\nmemory\n",
    "repeated lines": "memory [repeated 2x across cluster] (Ray deduplicates ",
    "autotuner": "memory autotuner.cc:12] INTERNAL: ",
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
    "chunks": "InUse at 703b01400 of size 256 next 159\n",
    "bins": "Bin (256): Total Chunks: 12, Chunks in use: 12 memory ",
    "ellipses": "memory ... ",
    "dots": ".",
    "bold": "**memory** ",
    "asterisks": "*",
    "links": "a%20b+memory",
    "words of links": "a%20b+memory ",
    "numbers apart": "memory 1 023",
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
        parse_ooms(text)
        times.append(time.process_time() - start)
    return min(times)


AFTER = {
    "figures of an allocator": "Free memory/Total memory: 1/2 \n",
    "statistics": "I xla/tsl/framework/bfc_allocator.cc:1160] Stats: Limit: 84987740160 \n",
    "causes": "CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
    "entries": "7. Size: 1.0M Shape: f32[8] Allocation type: HLO temp\n",
    "the same error": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.94GiB.\n",
    "attempts": "failed to allocate 1.0G (1073741824 bytes) from device: HIP_ERROR_OutOfMemory\n",
    "tracebacks": "Traceback (most recent call last):\nFree memory/Total memory: 1/2 \n",
    "programs": "RESOURCE_EXHAUSTED: Error loading program 'jit_f' - - - -\n",
    "what is free": "There are 1G free, 2G reserved, and 3G reservable\n",
    "a usage": "Total hbm usage >= 281.14M:\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AFTER)
def test_the_time_grows_with_what_follows_an_oom(name: str) -> None:
    """Four times the lines after an OOM take less than 8 times the time."""
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.94GiB.\n"
    seconds = [
        processor_seconds(error + AFTER[name] * (length // len(AFTER[name])))
        for length in (SMALL, 4 * SMALL)
    ]
    assert seconds[1] < 8 * max(seconds[0], 0.01)


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
