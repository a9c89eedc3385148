"""Logs with several failures, and failures that several lines describe."""

from __future__ import annotations

import textwrap

import pytest

from hbmwatch import OomMessage, parse_oom, parse_ooms

OUT = "CUDA_ERROR_OUT_OF_MEMORY: out of memory"


def log(text: str) -> str:
    """A log without the test's indentation."""
    return textwrap.dedent(text).strip()


def requests(text: str) -> list[int | None]:
    """The requested bytes of each OOM in a text."""
    return [message.requested_bytes for message in parse_ooms(text)]


def test_each_of_several_messages_has_its_own_words() -> None:
    """Its text has all of them, and ends where the line of the next message begins."""
    line = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
    text = f"{line} 300 bytes.\n{line}\n100 bytes. {line} 200 bytes."
    texts = [message.text for message in parse_ooms(text)]
    assert [flat.split()[-2:] for flat in texts] == [[n, "bytes."] for n in ("300", "100", "200")]
    assert texts[0] == f"{line} 300 bytes."


def test_a_log_with_several_failures_gives_each_with_its_lines() -> None:
    """OOMs keep their order, and each has the lines that it was read from, undecorated."""
    text = log(
        """
        [rank0]: starting, 8 devices
        [rank0]: jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space
        [rank0]: hbm. Used 3.00G of 2.00G hbm. Exceeded hbm capacity by 1.00G.
        [rank0]: Total hbm usage >= 3.25G:
        [rank0]:     reserved        256.00M
        [rank0]: Traceback (most recent call last):
        [rank0]:   File "eval.py", line 3, in <module>
        [rank0]: RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes.
        [rank0]: trying a smaller batch
        """
    )
    tpu, cpu = parse_ooms(text)
    assert tpu == OomMessage(
        log(
            """
            jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space
             hbm. Used 3.00G of 2.00G hbm. Exceeded hbm capacity by 1.00G.
             Total hbm usage >= 3.25G:
                 reserved        256.00M
            """
        ),
        "tpu",
        "compile",
        memory_space="hbm",
        used_bytes=3 * 2**30,
        limit_bytes=2 * 2**30,
        exceeded_by_bytes=2**30,
        totals={"Total hbm usage": 3 * 2**30 + 2**28, "reserved": 2**28},
        resolution_bytes=dict.fromkeys(
            ("used_bytes", "limit_bytes", "exceeded_by_bytes", "Total hbm usage"), 10737419
        )
        | {"reserved": 10486},
    )
    assert cpu.requested_bytes == 2**50
    assert cpu.text.splitlines()[0] == (
        "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."
    )


def test_the_first_failure_is_the_one_that_is_returned() -> None:
    """parse_oom gives the first OOM of parse_ooms, with the whole text."""
    text = "Out of memory allocating 8 bytes.\nTraceback\nOut of memory allocating 16 bytes."
    first = parse_oom(text)
    assert first is not None
    assert (first.text, first.requested_bytes, requests(text)) == (text, 8, [8, 16])


def test_a_chain_of_exceptions_is_one_failure() -> None:
    """JAX prints the same error twice, with and without its own frames."""
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes."
    text = log(
        f"""
        UnfilteredStackTrace: RuntimeError: {error}

        The stack trace below excludes JAX-internal frames.
        The preceding is the original exception that occurred, unmodified.

        --------------------

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "train.py", line 1, in <module>
        RuntimeError: {error}
        """
    )
    assert requests(text) == [4096]


def test_the_same_failure_again_is_another_one() -> None:
    """A loop that catches the error and continues fails twice."""
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.\n"
    assert requests(error + "retrying\n" + error) == [4096, 4096]


def test_attempts_of_the_pool_to_grow_are_part_of_the_failure_that_follows() -> None:
    """An allocation that the driver refuses before a request fails is not a second failure."""
    attempts = "".join(
        f"E cuda_driver.cc:806] failed to allocate 1.00G ({size} bytes) from device: {OUT}\n"
        for size in (1073741824, 966367641)
    )
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes."
    assert [m.pool for m in parse_ooms(attempts + error)] == ["allocator"]
    assert requests(attempts + error) == [4096]
    assert requests(attempts) == [1073741824]
    assert [(m.pool, m.phase) for m in parse_ooms(attempts)] == [("reservation", None)]


def test_log_lines_of_another_size_are_another_failure() -> None:
    """The allocator's line belongs only to an error that can be about the same request."""
    line = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB\n"
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes."
    assert requests(line + error.format(2147480000)) == [2147480000]
    assert requests(line + error.format(4096)) == [2147483648, 4096]


def test_a_message_of_several_replicas_keeps_the_codes_apart() -> None:
    """An error code belongs to the sentence after it, not to the next failure."""
    text = (
        "E1000: CompileTimeHbmOom: Ran out of memory in memory space hbm. Used 2.00G of 1.00G hbm."
        " Exceeded hbm capacity by 1.00G.\nRan out of memory in memory space vmem. Used 2.00M of"
        " 1.00M vmem. Exceeded vmem capacity by 1.00M."
    )
    assert [(m.code, m.memory_space) for m in parse_ooms(text)] == [
        ("E1000", "hbm"),
        (None, "vmem"),
    ]


def test_a_word_that_a_terminal_broke_is_mended() -> None:
    """A line break inside a word does not hide the message."""
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to all\nocate 4096 bytes."
    assert requests(text) == [4096]


def test_a_payload_that_quotes_the_message_is_no_second_failure() -> None:
    """jaxlib appends the compiler's result, which begins with the same sentence."""
    text = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "vmem. Used 2.00M of 1.00M vmem. Exceeded vmem capacity by 1.00M. "
        "[type.googleapis.com/tensorflow.tpu.CompilationResultProto='\\x08\\x08Ran out of memory "
        "in memory space vmem. Used 2.00M of 1.00M...[truncated]'] [executable_name='jit_f']"
    )
    messages = parse_ooms(text)
    assert [(m.memory_space, m.module) for m in messages] == [("vmem", "jit_f")]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param("terminate called after throwing an instance of 'E'\n  what():  ", id="C++"),
        pytest.param("Traceback (most recent call last):\nJaxRuntimeError: ", id="Python"),
        pytest.param("jaxlib.xla_extension.XlaRuntimeError: ", id="only the last line"),
    ],
)
def test_an_error_that_xla_logged_and_raised_is_one_failure(again: str) -> None:
    """The text of the log and that of the exception are equal; another execution is another one."""
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.\n"
    logged = f"E1220 12:16:23.529862 741040 x.cc:3086] Execution of replica 0 failed: {error}"
    assert requests(logged + again + error) == [4096]
    assert requests(logged + again + error.replace("4096", "8192")) == [4096, 8192]
    assert requests(logged + logged) == [4096, 4096]


STATS = "Stats: \nLimit: {limit}\nInUse: 90\nMaxInUse: 95\nNumAllocs: 7\nMaxAllocSize: 50\n"


def test_figures_that_an_allocator_logs_belong_to_the_error_next_to_them() -> None:
    """Before it, after it, and each once; alone, or far from an error, they are no failure."""
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64 bytes.\n"
    first, second = STATS.format(limit=100), STATS.format(limit=200)

    def limits(text: str) -> list[int | None]:
        return [message.limit_bytes for message in parse_ooms(text)]

    assert limits(first + error) == limits(error + first) == [100]
    assert limits(first + second + error) == [200]
    assert limits(error + first + second + error.replace("64", "32")) == [100, 200]
    assert limits(first) == []
    assert limits(first + "step 7\n" * 1000 + error) == [None]
    assert limits(first + error.replace("while trying to allocate", "allocating")) == [None]


def test_the_chunks_that_an_allocator_lists_do_not_part_its_failure() -> None:
    """The list is longer than any gap between the lines of one failure."""
    chunk = "I bfc_allocator.cc:1066] InUse at 703b01400 of size 256 next 159\n"
    text = (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 64B\n"
        + chunk * 3000
        + STATS.format(limit=100)
        + "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64 bytes.\n"
    )
    (message,) = parse_ooms(text)
    assert (message.limit_bytes, message.totals["InUse"]) == (100, 90)


BLOCKS = (
    "```\n2018-05-18 17:01:53.028636: E cuda_driver.cc:936] failed to allocate 11.00G (11811160064 "
    "bytes) from device: CUDA_ERROR_OUT_OF_MEMORY\n```\n\n{words}\n\n```\n{error}\n```\n"
)


def test_logs_in_two_blocks_of_code_are_two_failures() -> None:
    """A person shows a second log after some words; the same log may go on in a second block."""
    handle = "E cuda_dnn.cc:455] could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
    two = parse_ooms(BLOCKS.format(words="Then another run failed:", error=handle))
    assert [(one.pool, one.requested_bytes) for one in two] == [
        ("reservation", 11811160064),
        ("driver", None),
    ]
    error = "RESOURCE_EXHAUSTED: Failed to allocate request for 11.00GiB (11811160064B)"
    (one,) = parse_ooms(BLOCKS.format(words="and so", error=error))
    assert (one.pool, one.requested_bytes) == ("allocator", 11811160064)
    (one,) = parse_ooms(BLOCKS.format(words="and so", error=handle).replace("```", ""))
    assert (one.pool, one.requested_bytes) == ("driver", None)
